"""Packed messages are what they were, and lie packed until somebody reads them."""

from concurrent.futures import ThreadPoolExecutor
from itertools import starmap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agent_context._context.packed_messages import PackedChunk, pack, unpack
from agent_context._context.persistent_vector import CHUNK, EMPTY, PersistentVector
from tests.context.test_persistent_vector import EDITS, edited
from tests.histories import asking, result, said, user
from tests.support.examples import examples

BLOCK = 8 * CHUNK


def talk(length: int) -> PersistentVector:
    """A vector of that many messages."""
    return PersistentVector.of(user(str(number)) for number in range(length))


def packed(length: int) -> PersistentVector:
    """The same, as it is when nobody has read it yet."""
    return unpack(pack(talk(length)))


def still_packed(vector: PersistentVector) -> list[bool]:
    """Of each chunk whether it is."""
    return [
        isinstance(chunk, PackedChunk) and chunk.block.packed is not None for chunk in vector.chunks
    ]


def facts(vector: PersistentVector) -> list[tuple[object, ...]]:
    """What its messages say."""
    return [(one.id, one.role, one.body, one.call_ids) for one in vector]


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, BLOCK, BLOCK + 1, 2 * BLOCK + 77])
def test_what_was_packed_says_the_same(length: int) -> None:
    vector = talk(length)

    again = unpack(pack(vector))

    assert len(again) == length
    assert facts(again) == facts(vector)
    assert [one.id for one in reversed(again)] == [one.id for one in reversed(vector)]


def test_roles_and_calls_are_kept() -> None:
    vector = PersistentVector.of([user("a"), asking("1", "2"), result("1"), said("b")] * CHUNK)

    assert facts(unpack(pack(vector))) == facts(vector)


@examples(0.5)
@given(st.integers(0, BLOCK + 40), st.lists(st.sampled_from(EDITS), max_size=5), st.data())
def test_an_edit_does_the_same_to_a_packed_vector(
    length: int, edits: list[str], data: DataObject
) -> None:
    vector = packed(length)
    model = tuple(unpack(pack(vector)))  # others that say the same, so that it stays packed

    for edit in edits:
        vector, model = edited(vector, model, edit, data)

    assert [record.id for record in vector] == [one.id for one in model]
    assert len(vector) == len(model)


def test_what_adds_to_it_or_cuts_it_back_reads_none_of_it() -> None:
    vector = packed(2 * BLOCK)

    longer = vector.append(user("x")).extend([user("y")] * CHUNK)
    shorter = vector.head(BLOCK)

    assert longer.shares_prefix(vector, 2 * BLOCK)
    assert shorter.shared_length(vector) == BLOCK
    assert all(still_packed(vector))
    assert still_packed(longer) == [True] * 16 + [False]
    assert all(still_packed(shorter))


def test_reading_one_message_unpacks_its_block_alone() -> None:
    vector = packed(2 * BLOCK)

    assert vector[BLOCK].message.text == str(BLOCK)

    assert still_packed(vector) == [True] * 8 + [False] * 8


def test_what_nobody_read_is_packed_as_it_was() -> None:
    vector = packed(3 * BLOCK)
    before = pack(vector).blocks
    assert vector[0] is not None

    after = pack(vector.append(user("x"))).blocks

    assert after[1] is before[1]
    assert after[2] is before[2]
    assert after[0] == before[0]


def test_chunks_of_several_blocks_are_packed_anew() -> None:
    vector = packed(2 * BLOCK)
    shifted = PersistentVector(vector.chunks[4:])

    assert facts(unpack(pack(shifted))) == facts(shifted)


def test_all_threads_read_the_same_objects() -> None:
    vector = packed(4 * BLOCK)

    with ThreadPoolExecutor(8) as threads:
        reads = list(threads.map(lambda _: tuple(vector), range(8)))

    assert all(all(starmap(_is, zip(reads[0], read, strict=True))) for read in reads)


def test_a_packed_vector_equals_one_of_the_same_objects() -> None:
    vector = packed(BLOCK + 3)
    same = PersistentVector.of(tuple(vector))

    assert vector.shares_prefix(same, BLOCK + 3)
    assert same.shares_prefix(vector, BLOCK + 3)
    assert not vector.shares_prefix(talk(BLOCK + 3), BLOCK)
    assert unpack(pack(EMPTY)).shares_prefix(EMPTY, 0)


def _is(one: object, other: object) -> bool:
    return one is other
