"""Cuts respect groups, shown against a model that is slow and plainly right."""

from hypothesis import given
from hypothesis import strategies as st

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import (
    find_open_calls,
    legal_cuts,
    update_open_calls,
    user_turn_starts,
)
from agent_context.messages import Role
from tests.histories import asking, histories, result, said, user
from tests.support.examples import examples

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


def owner(records: list[StoredMessage], index: int) -> int | None:
    """The nearest earlier message that calls what the result at `index` answers."""
    [call] = records[index].call_ids
    earlier = range(index - 1, -1, -1)
    callers = (
        i for i in earlier if records[i].role is Role.ASSISTANT and call in records[i].call_ids
    )
    return next(callers, None)


def group_numbers(records: list[StoredMessage]) -> list[int]:
    """A union-find, small enough to be read: messages of one group have one number."""
    groups = list(range(len(records)))
    for index, record in enumerate(records):
        if record.role is Role.TOOL and (caller := owner(records, index)) is not None:
            joined = {groups[index], groups[caller]}
            groups = [min(joined) if number in joined else number for number in groups]
    return groups


def is_open(records: list[StoredMessage], index: int, call: str) -> bool:
    """Whether a call may still be answered: no user spoke, no other took its id, none is final."""
    later = [record for record in records[index + 1 :] if not record.message.interim]
    return not any(record.role is Role.USER or call in record.call_ids for record in later)


def callers(records: list[StoredMessage]) -> list[int]:
    return [index for index, record in enumerate(records) if record.role is Role.ASSISTANT]


def plain_cuts(records: list[StoredMessage]) -> list[int]:
    groups = group_numbers(records)
    pinned = {
        index
        for index in callers(records)
        if any(is_open(records, index, call) for call in records[index].call_ids)
    }
    return [
        cut
        for cut in range(len(records), -1, -1)
        if not set(groups[:cut]) & set(groups[cut:]) and all(index >= cut for index in pinned)
    ]


@examples(10)
@given(shapes | histories)
def test_cuts_are_the_places_between_groups_before_any_open_call(
    records: list[StoredMessage],
) -> None:
    assert list(legal_cuts(PersistentVector.of(records))) == plain_cuts(records)


@examples(5)
@given(shapes | histories)
def test_open_calls_are_those_that_may_still_be_answered(records: list[StoredMessage]) -> None:
    expected = {
        call
        for index in callers(records)
        for call in records[index].call_ids
        if is_open(records, index, call)
    }

    found = find_open_calls(records)

    assert set(found) == expected
    assert len(found) == len(expected)


@examples(5)
@given(shapes | histories)
def test_open_calls_are_followed_from_message_to_message(records: list[StoredMessage]) -> None:
    pending: tuple[str, ...] = ()

    for record in records:
        pending = update_open_calls(pending, record)

    assert pending == find_open_calls(records)


def test_an_orphan_does_not_forbid_cuts_and_loosens_no_group() -> None:
    records = [result("a"), asking("a"), result("a"), result("nowhere"), said()]

    assert list(legal_cuts(records)) == [5, 4, 3, 1, 0]


def test_turns_start_where_users_speak_newest_first() -> None:
    assert list(user_turn_starts([user(), said(), user(), user()])) == [3, 2, 0]
