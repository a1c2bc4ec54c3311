"""Ids are found without reading what lies packed."""

from collections.abc import Iterable

import pytest

from agent_context._context.message_ids import MessageIds
from agent_context._context.packed_messages import PackedChunk, pack, unpack
from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from tests.histories import user


def zones_of(records: Iterable[StoredMessage]) -> Zones:
    return Zones(EMPTY, EMPTY, unpack(pack(PersistentVector.of(records))), (), has_pinned=False)


def packed_chunks(zones: Zones) -> int:
    chunks = zones.incremental.chunks
    return sum(
        isinstance(chunk, PackedChunk) and chunk.block.packed is not None for chunk in chunks
    )


@pytest.mark.parametrize("length", [10, 100, 1_000])
def test_held_ids_are_found_and_others_are_not(length: int) -> None:
    records = [user(str(number)) for number in range(length)]
    zones, ids = zones_of(records), MessageIds()

    assert not any(ids.holds(user("x").id, zones) for _ in range(100))
    assert all(ids.holds(record.id, zones) for record in records)
    assert not ids.holds("", zones)


def test_a_new_id_is_looked_for_without_reading_any_message() -> None:
    zones, ids = zones_of(user(str(number)) for number in range(1_000)), MessageIds()
    said = user("x")

    assert not ids.holds(said.id, zones)
    zones = zones.append(said)
    ids.update((), [said])

    assert ids.holds(said.id, zones)
    assert packed_chunks(zones) == 31


def test_what_left_is_not_found_again() -> None:
    records = [user(str(number)) for number in range(300)]
    zones, ids = zones_of(records), MessageIds()
    assert not ids.holds("x", zones)

    zones = zones.remove(7)
    ids.update([records[7]], ())

    assert not ids.holds(records[7].id, zones)
    assert ids.holds(records[8].id, zones)


def test_once_all_is_read_the_hashes_are_asked_no_more() -> None:
    records = [user(str(number)) for number in range(300)]
    zones, ids = zones_of(records), MessageIds()
    assert not ids.holds("x", zones)

    assert len(list(zones)) == 300

    assert all(ids.holds(record.id, zones) for record in records)
    assert not ids.holds("x", zones)


def test_other_zones_are_read_anew() -> None:
    old, new = [[user(str(number)) for number in range(100)] for _ in range(2)]
    ids = MessageIds()
    assert ids.holds(old[0].id, zones_of(old))

    ids.forget()

    assert ids.holds(new[0].id, zones_of(new))
    assert not ids.holds(old[0].id, zones_of(new))
