"""Zones are a value: edits give new ones, and what is open is always known."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.tool_call_groups import find_open_calls
from agent_context._context.zones import Zone, Zones
from agent_context.compression import pin
from agent_context.errors import IndexOutOfRange
from agent_context.messages import Role
from tests.histories import asking, histories, result, said, user, zones_of
from tests.support.examples import examples


@examples(3)
@given(histories)
def test_open_calls_after_appends_are_those_of_the_whole(records: list[StoredMessage]) -> None:
    zones = Zones()

    for record in records:
        zones = zones.append(record)

    assert zones.open_calls == find_open_calls(records) == zones_of(records).open_calls


@examples(3)
@given(histories, st.integers(0, 13), histories, st.booleans())
def test_no_edit_forgets_that_something_is_protected(
    records: list[StoredMessage], at: int, more: list[StoredMessage], asked: bool
) -> None:
    zones, at = zones_of(records), min(at, len(records))
    if asked:
        assert zones.has_pinned is any(each.pin is not None for each in records)
    marked = from_message(pin(result("a").message, "skill", subject="s"))
    edited = [zones.insert(at, [marked]), zones.extend([*more, marked]), zones.append(marked)]
    if at < len(records):
        edited.append(zones.update(at, marked))

    assert all(each.has_pinned and each.append(user()).has_pinned for each in edited)
    assert zones.append(user()).truncate(at).has_pinned in {False, zones.has_pinned}


@examples(3)
@given(histories, st.integers(0, 13), histories)
def test_every_edit_knows_what_is_open(
    records: list[StoredMessage], at: int, more: list[StoredMessage]
) -> None:
    zones, at = zones_of(records), min(at, len(records))
    edited = [zones.insert(at, more), zones.truncate(at), zones.extend(more)]
    if at < len(records):
        edited += [zones.remove(at), zones.update(at, user())]

    assert [each.open_calls for each in edited] == [
        find_open_calls(each.incremental) for each in edited
    ]
    assert tuple(zones) == tuple(records)


def test_a_request_is_the_three_zones_in_order() -> None:
    one, two, three = said("1"), said("2"), said("3")

    zones = Zones(
        PersistentVector.of([one]), PersistentVector.of([two]), PersistentVector.of([three])
    )

    assert list(zones) == [zones.get(index) for index in range(len(zones))] == [one, two, three]
    assert [list(zones.zone(zone)) for zone in Zone] == [[one], [two], [three]]


@pytest.mark.parametrize(
    "edit",
    [
        lambda zones: zones.get(2),
        lambda zones: zones.get(-1),
        lambda zones: zones.insert(3, [user()]),
        lambda zones: zones.update(2, user()),
        lambda zones: zones.remove(-1),
        lambda zones: zones.truncate(3),
    ],
)
def test_an_index_out_of_range_is_said_to_be_so(edit: Callable[[Zones], object]) -> None:
    with pytest.raises(IndexOutOfRange, match="there are 2 messages"):
        edit(zones_of([user(), said()]))


def test_retaining_all_changes_nothing() -> None:
    zones = zones_of([user(), said()])

    assert zones.filter(lambda _: True) is zones


def test_retaining_a_role_keeps_its_messages_in_order() -> None:
    one, two = user("1"), user("2")

    assert list(zones_of([one, said(), two]).filter(lambda r: r.role is Role.USER)) == [one, two]


def test_compressing_leaves_the_immutable_zone() -> None:
    prompt, summary, last = said("prompt"), said("summary"), result("a")
    zones = Zones(
        PersistentVector.of([prompt]), incremental=PersistentVector.of([user(), asking("a")])
    )

    assert list(zones.compress(PersistentVector.of([summary]), PersistentVector.of([last]))) == [
        prompt,
        summary,
        last,
    ]
