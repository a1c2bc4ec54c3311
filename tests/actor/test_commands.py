"""Every edit does what it says, answers, is announced, or changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agent_context import (
    Append,
    Extend,
    Fork,
    Incremental,
    Message,
    Messages,
    Role,
    Send,
    ToJsonl,
    events,
)
from agent_context.errors import (
    IndexOutOfRange,
    InvalidMessage,
    InvalidOptions,
    UsageError,
    VersionConflict,
)
from agent_context.protocol import (
    Ask,
    Clear,
    Conditional,
    Get,
    Immutable,
    Insert,
    IsEmpty,
    Len,
    Pop,
    Remove,
    Retain,
    Rewind,
    Update,
    Version,
)
from agent_context_backends.scripted import Hold
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import wait_for

A, B, C = Message.user("a"), Message.assistant("b"), Message.user("c")


def test_append_answers_with_the_id_and_announces_the_place(talk: Talk, seen: Seen) -> None:
    ctx = talk(on_change=seen)

    message_id = ctx.ask(Append(A))

    assert message_id == A.id
    (event,) = seen.wait_for(events.Appended)
    assert (event.index, event.message) == (0, A)
    assert (event.seq, event.version_before, event.version_after) == (1, 0, 1)
    assert event.conversation_id == ctx.id


def test_the_same_message_said_twice_is_two_messages(talk: Talk) -> None:
    ctx = talk()

    first, second = ctx.ask(Append(A)), ctx.ask(Append(A))

    assert first == A.id != second
    assert [message.text for message in ctx.ask(Messages())] == ["a", "a"]


def test_a_message_that_was_popped_may_come_back_under_its_id(talk: Talk) -> None:
    ctx = talk()
    ctx.ask(Extend([Message.user(str(n)) for n in range(100)]))
    last = ctx.ask(Pop())
    assert last is not None

    assert ctx.ask(Append(last)) == last.id
    assert ctx.ask(Append(last)) != last.id


def test_extend_is_one_event_and_all_or_nothing(talk: Talk, seen: Seen) -> None:
    ctx = talk(on_change=seen)

    ids = ctx.ask(Extend([A, B]))
    with pytest.raises(InvalidMessage, match="not str"):
        ctx.ask(Extend([C, "no message"]))  # type: ignore[list-item]

    assert ids == (A.id, B.id)
    assert ctx.ask(Messages()) == (A, B)
    assert [event.messages for event in seen.wait_for(events.Extended)] == [(A, B)]


def test_insert_takes_the_length_as_an_index(talk: Talk, seen: Seen) -> None:
    ctx = talk(on_change=seen)

    ctx.ask(Insert(0, B))
    ctx.ask(Insert(0, A))
    ctx.ask(Insert(2, C))

    assert ctx.ask(Incremental()) == (A, B, C)
    assert [event.index for event in seen.wait_for(events.Inserted, 3)] == [0, 0, 2]


def test_update_keeps_the_id_of_the_place(talk: Talk, seen: Seen) -> None:
    ctx = talk(on_change=seen)
    ctx.ask(Append(A))

    old = ctx.ask(Update(0, C))

    new = ctx.ask(Get(0))
    assert (old, new.text, new.id) == (A, "c", A.id)
    (event,) = seen.wait_for(events.Updated)
    assert (event.old, event.new) == (A, new)


def test_remove_pop_retain_clear_and_rewind_answer_with_what_went(talk: Talk, seen: Seen) -> None:
    ctx = talk(on_change=seen)
    ctx.ask(Extend([A, B, C, Message.user("d"), Message.user("e")]))

    removed = ctx.ask(Remove(0))
    popped = ctx.ask(Pop())
    retained = ctx.ask(Retain(Role.USER))
    rewound = ctx.ask(Rewind(1))
    cleared = ctx.ask(Clear())

    assert (removed, popped, retained) == (
        A,
        Message.user("e").model_copy(update={"id": popped and popped.id}),
        (B,),
    )
    assert [message.text for message in rewound] == ["d"]
    assert cleared == (C,)
    seen.wait_for(events.Cleared)
    assert seen.names == ["Extended", "Removed", "Popped", "Retained", "Rewound", "Cleared"]


def test_retain_takes_a_predicate_and_survives_one_that_raises(talk: Talk) -> None:
    ctx = talk()
    ctx.ask(Extend([A, B, C]))

    with pytest.raises(ZeroDivisionError):
        ctx.ask(Retain(lambda _: 1 / 0 > 0))
    gone = ctx.ask(Retain(lambda message: message.text != "b"))

    assert gone == (B,)
    assert ctx.ask(Messages()) == (A, C)


def test_an_edit_that_changes_nothing_is_no_event(talk: Talk, seen: Seen) -> None:
    ctx = talk(on_change=seen)

    assert ctx.ask(Pop()) is None
    assert ctx.ask(Clear()) == ctx.ask(Rewind(0)) == ctx.ask(Retain(Role.USER)) == ()
    assert ctx.ask(Extend([])) == ()
    ctx.ask(Append(A))

    seen.wait_for(events.Appended)
    assert seen.names == ["Appended"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda: Insert(2, B),
        lambda: Insert(-1, B),
        lambda: Update(1, B),
        lambda: Remove(-1),
        lambda: Remove(1),
        lambda: Rewind(2),
        lambda: Rewind(-1),
        lambda: Get(5),
        lambda: Get(-1),
        lambda: Fork(9),
    ],
)
def test_an_index_that_names_nothing_is_refused(
    talk: Talk, edit: Callable[[], Ask[object]]
) -> None:
    ctx = talk(immutable=[Message.system("s")])
    ctx.ask(Append(A))
    before = ctx.ask(ToJsonl())

    with pytest.raises(IndexOutOfRange) as raised:
        ctx.ask(edit())

    assert raised.value.length in {1, 2}
    assert ctx.ask(ToJsonl()) == before


@pytest.mark.parametrize(
    "message",
    [
        Append("text"),  # type: ignore[arg-type]
        Append(None),  # type: ignore[arg-type]
        Extend(A),  # type: ignore[arg-type]
        Extend("text"),  # type: ignore[arg-type]
        Extend(3),  # type: ignore[arg-type]
        Insert("0", A),  # type: ignore[arg-type]
        Update(True, A),
        Remove(0.5),  # type: ignore[arg-type]
        Retain("nobody"),  # type: ignore[arg-type]
        Append(Message.user("\ud83d")),
    ],
)
def test_a_bad_argument_is_a_usage_mistake_and_changes_nothing(
    talk: Talk, message: Ask[object]
) -> None:
    ctx = talk()
    ctx.ask(Append(A))

    with pytest.raises(UsageError):
        ctx.ask(message)

    assert ctx.ask(Messages()) == (A,)


def test_something_that_is_no_message_of_ours_is_refused(talk: Talk) -> None:
    ctx = talk()

    with pytest.raises(UsageError, match="not with str"):
        ctx.actor_ref.ask("hello", timeout=5)
    ctx.actor_ref.tell(["nonsense"])

    assert ctx.ask(IsEmpty())


def test_the_immutable_zone_is_out_of_reach_of_edits(talk: Talk) -> None:
    system = Message.system("s")
    ctx = talk(immutable=[system])
    ctx.ask(Extend([A, B]))

    ctx.ask(Clear())
    ctx.ask(Rewind(0))

    assert ctx.ask(Immutable()) == ctx.ask(Messages()) == (system,)
    assert ctx.ask(Len()) == 1


def test_a_value_that_was_handed_out_changes_nothing(talk: Talk) -> None:
    ctx = talk()
    ctx.ask(Append(Message.model_validate({"role": "user", "content": "a", "tags": ["x"]})))

    ctx.ask(Get(0)).extra["tags"].append("y")

    assert ctx.ask(Get(0)).extra == {"tags": ["x"]}


def test_a_fork_shares_the_past_and_not_the_future(talk: Talk, seen: Seen) -> None:
    ctx = talk(immutable=[Message.system("s")], on_change=seen)
    ctx.ask(Extend([A, B, C]))

    fork = ctx.ask(Fork(2))
    fork.ask(Append(Message.user("only there")))
    ctx.ask(Append(Message.user("only here")))

    assert [message.text for message in fork.ask(Messages())] == ["s", "a", "b", "only there"]
    assert ctx.ask(Len()) == 5
    assert fork.id != ctx.id
    seen.wait_for(events.Appended)
    assert {event.conversation_id for event in seen.events} == {ctx.id}


def test_a_conditional_command_is_carried_out_at_its_version_alone(talk: Talk) -> None:
    ctx = talk(["answered"])
    ctx.ask(Append(A))

    assert ctx.ask(Version()) == 1
    assert ctx.ask(Conditional(Append(B), 1)) == B.id
    with pytest.raises(VersionConflict, match="at version 2, not at 1") as caught:
        ctx.ask(Conditional(Append(C), 1))
    answer = ctx.ask(Conditional(Send(messages=[C]), 2))

    assert (caught.value.expected, caught.value.version) == (1, 2)
    assert answer.message.text == "answered"
    assert [m.text for m in ctx.ask(Incremental())] == ["a", "b", "c", "answered"]


async def test_giving_up_a_conditional_turn_cancels_it(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([hold, "never"], on_change=seen)
    asking = asyncio.create_task(ctx.aask(Conditional(Send(messages=[A]), 0)))
    await asyncio.to_thread(wait_for, hold.entered)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    await asyncio.to_thread(seen.wait_for, events.Cancelled)


def test_starting_with_something_else_than_asked_for_says_which(talk: Talk) -> None:
    with pytest.raises(InvalidOptions, match="options: SendOptions expected, not dict"):
        talk(options={"model": "m"})
    with pytest.raises(InvalidOptions, match="id: str expected"):
        talk(id=7)
    with pytest.raises(InvalidOptions, match="compression: Strategy expected"):
        talk(compression="half")
    with pytest.raises(InvalidOptions, match="on_change: a callable is expected"):
        talk(on_change="callback")
    with pytest.raises(InvalidMessage):
        talk(immutable=["You are terse."])
