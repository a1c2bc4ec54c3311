"""A vector is a tuple that is cheap to edit."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage
from tests.histories import user
from tests.support.examples import examples

POOL = [user(str(number)) for number in range(7)]
EDITS = ["append", "extend", "take", "replace", "insert", "remove"]
some = st.lists(st.sampled_from(POOL), max_size=70)


def edited(
    vector: PersistentVector, model: tuple[StoredMessage, ...], edit: str, data: DataObject
) -> tuple[PersistentVector, tuple[StoredMessage, ...]]:
    """Both after the same edit at a random place."""
    at = data.draw(st.integers(0, len(model)))
    record, more = data.draw(st.sampled_from(POOL)), data.draw(some)
    match edit:
        case "append":
            return vector.append(record), (*model, record)
        case "extend":
            return vector.extend(more), (*model, *more)
        case "take":
            return vector.head(at), model[:at]
        case "insert":
            return vector.insert(at, more), (*model[:at], *more, *model[at:])
        case "replace" if at < len(model):
            return vector.replace(at, record), (*model[:at], record, *model[at + 1 :])
        case "remove" if at < len(model):
            return vector.remove(at), (*model[:at], *model[at + 1 :])
        case _:
            return vector, model


@examples(3)
@given(some, st.lists(st.sampled_from(EDITS), max_size=12), st.data())
def test_a_vector_is_a_tuple_under_any_edits(
    start: list[StoredMessage], edits: list[str], data: DataObject
) -> None:
    vector, model = PersistentVector.of(start), tuple(start)

    for edit in edits:
        before = tuple(vector)
        later, model = edited(vector, model, edit, data)
        assert tuple(vector) == before
        vector = later

    assert len(vector) == len(model)
    assert tuple(vector) == model
    assert tuple(reversed(vector)) == model[::-1]
    assert tuple(vector[index] for index in range(len(model))) == model


@examples(2)
@given(some, st.integers(0, 70))
def test_a_vector_is_what_it_takes_and_what_it_drops(start: list[StoredMessage], at: int) -> None:
    vector, length = PersistentVector.of(start), min(at, len(start))

    assert (*vector.head(length), *vector.tail(length)) == tuple(start)


@examples(3)
@given(some, some, some, st.integers(0, 150))
def test_vectors_share_a_beginning_exactly_if_it_is_the_same_records(
    common: list[StoredMessage], one: list[StoredMessage], other: list[StoredMessage], length: int
) -> None:
    first, second = [*common, *one], [*common, *other]

    shared = PersistentVector.of(first).shares_prefix(
        PersistentVector.of(common).extend(other), length
    )

    fits = length <= min(len(first), len(second))
    assert shared == (fits and first[:length] == second[:length])


def test_equal_records_that_are_not_the_same_are_not_shared() -> None:
    assert not EMPTY.append(user("x")).shares_prefix(EMPTY.append(user("x")), 1)


def test_an_append_keeps_all_full_chunks() -> None:
    vector = PersistentVector.of(POOL * 10)

    assert vector.append(POOL[0]).chunks is vector.chunks


@given(st.lists(st.integers(0, 3), max_size=100), st.lists(st.integers(0, 3), max_size=100))
def test_common_counts_what_both_begin_with(one: list[int], other: list[int]) -> None:
    shared = [user(str(n)) for n in one]
    first = PersistentVector.of(shared)
    second = PersistentVector.of(shared[:50]).extend(user(str(n)) for n in other)
    expected = 0
    for left, right in zip(first, second, strict=False):
        if left.body != right.body:
            break
        expected += 1

    assert first.common_prefix_length(second) == second.common_prefix_length(first) == expected
