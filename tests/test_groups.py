"""Cuts respect groups, shown against a model that is slow and plainly right."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_context.groups import cuts, open_calls, open_calls_after, turn_starts
from agent_context.messages import Role
from agent_context.records import Record
from agent_context.vector import Vector
from tests.histories import asking, histories, result, said, user

shapes = st.lists(
    st.one_of(
        st.just(None).map(lambda _: user()),
        st.just(None).map(lambda _: said()),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda ids: asking(*ids)),
        st.sampled_from("abcd").map(result),
        st.builds(result, st.sampled_from("abcd"), interim=st.booleans()),
    ),
    max_size=12,
)


def owner(records: list[Record], index: int) -> int | None:
    """The nearest earlier message that calls what the result at `index` answers."""
    [call] = records[index].calls
    earlier = range(index - 1, -1, -1)
    callers = (i for i in earlier if records[i].role is Role.ASSISTANT and call in records[i].calls)
    return next(callers, None)


def group_numbers(records: list[Record]) -> list[int]:
    """A union-find, small enough to be read: messages of one group have one number."""
    groups = list(range(len(records)))
    for index, record in enumerate(records):
        if record.role is Role.TOOL and (caller := owner(records, index)) is not None:
            joined = {groups[index], groups[caller]}
            groups = [min(joined) if number in joined else number for number in groups]
    return groups


def is_open(records: list[Record], index: int, call: str) -> bool:
    """Whether a call may still be answered: no user spoke, no other took its id, none is final."""
    later = [record for record in records[index + 1 :] if not record.message.interim]
    return not any(record.role is Role.USER or call in record.calls for record in later)


def callers(records: list[Record]) -> list[int]:
    return [index for index, record in enumerate(records) if record.role is Role.ASSISTANT]


def legal_cuts(records: list[Record]) -> list[int]:
    groups = group_numbers(records)
    pinned = {
        index
        for index in callers(records)
        if any(is_open(records, index, call) for call in records[index].calls)
    }
    return [
        cut
        for cut in range(len(records), -1, -1)
        if not set(groups[:cut]) & set(groups[cut:]) and all(index >= cut for index in pinned)
    ]


@settings(max_examples=1000, deadline=None)
@given(shapes | histories)
def test_cuts_are_the_places_between_groups_before_any_open_call(records: list[Record]) -> None:
    assert list(cuts(Vector.of(records))) == legal_cuts(records)


@settings(max_examples=500, deadline=None)
@given(shapes | histories)
def test_open_calls_are_those_that_may_still_be_answered(records: list[Record]) -> None:
    expected = {
        call
        for index in callers(records)
        for call in records[index].calls
        if is_open(records, index, call)
    }

    found = open_calls(records)

    assert set(found) == expected
    assert len(found) == len(expected)


@settings(max_examples=500, deadline=None)
@given(shapes | histories)
def test_open_calls_are_followed_from_message_to_message(records: list[Record]) -> None:
    pending: tuple[str, ...] = ()

    for record in records:
        pending = open_calls_after(pending, record)

    assert pending == open_calls(records)


def test_an_orphan_does_not_forbid_cuts_and_loosens_no_group() -> None:
    records = [result("a"), asking("a"), result("a"), result("nowhere"), said()]

    assert list(cuts(records)) == [5, 4, 3, 1, 0]


def test_turns_start_where_users_speak_newest_first() -> None:
    assert list(turn_starts([user(), said(), user(), user()])) == [3, 2, 0]
