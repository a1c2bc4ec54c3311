"""Turns of durable conversations: what they leave, whenever they end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_context import (
    Append,
    Cancel,
    Completion,
    ContextRef,
    Extend,
    Incremental,
    Message,
    Send,
    SendOptions,
    SendStream,
    TextDelta,
    ToolCall,
    events,
)
from agent_context.errors import ConversationClosed, InvalidMessage, TurnCancelled
from agent_context.protocol import Clear, Len, Pop
from agent_context.stores.memory import MemoryStore
from agent_context.tools.loop import ToolRound
from agent_context_backends.scripted import Hold
from tests.actor.conftest import Seen, Talk
from tests.actor.stores import Held, crash
from tests.support.waiting import WAIT, wait_for, wait_until

CALL = Message.assistant("", tool_calls=[ToolCall(id="a", name="pay")])


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


def wait_until_held(ref: ContextRef, count: int) -> Any:
    """Wait until the conversation has so many messages in memory, kept or not; returns its actor.

    What is not kept yet, nobody is told.
    """
    actor: Any = ref.actor_ref._actor_weakref()
    wait_until(lambda: len(actor._state.zones) == count)
    return actor


class Paying:
    """Carries the call out."""

    def __init__(self) -> None:
        self.done: Callable[[Message], object] | None = None
        self.after: Callable[[], object] = lambda: None
        """Called at its end."""

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        self.done = done
        paid = Message.tool("a", "paid")
        done(paid)
        self.after()
        return ToolRound([paid])


def test_what_a_crashed_turn_left_stands_at_the_end_if_what_it_answered_is_gone(
    talk: Talk,
) -> None:
    store, hold = MemoryStore(), Hold()
    ref = talk([hold, "never"], store=store, id="c")
    ref.ask(Extend([Message.user("a"), Message.user("b")]))
    ref.actor_ref.ask(Send(messages=[Message.user("hi")]), block=False)
    wait_for(hold.entered)
    ref.ask(Pop())
    assert texts(talk(store=store, id="c").ask(Incremental())) == ["a", "hi"]
    hold.release()


def test_what_a_turn_left_stands_at_the_end_if_all_else_is_gone(talk: Talk) -> None:
    hold = Hold()
    ref = talk([hold, "one"])
    ref.ask(Append(Message.user("a")))
    reply = ref.actor_ref.ask(Send(messages=[Message.user("hi")]), block=False)
    wait_for(hold.entered)
    ref.ask(Clear())
    ref.ask(Append(Message.user("b")))
    hold.release()
    reply.get(timeout=WAIT)
    assert texts(ref.ask(Incremental())) == ["b", "hi", "one"]


def test_a_turn_that_is_cancelled_while_its_round_is_kept_stores_the_round_once(
    talk: Talk, seen: Seen
) -> None:
    store, hold = Held(), Hold()

    class Loop(Paying):
        async def answer(
            self, completion: Completion, done: Callable[[Message], object]
        ) -> ToolRound | None:
            await hold.wait()
            return await super().answer(completion, done)

    ref = talk([CALL, "never"], store=store, id="c", on_change=seen)
    reply = ref.actor_ref.ask(Send(messages=[Message.user("go")], loop=Loop()), block=False)
    wait_for(hold.entered)
    store.writing.shut()
    hold.release()
    wait_for(store.writing.reached)  # the result is noted
    actor: Any = ref.actor_ref._actor_weakref()
    wait_until(lambda: len(actor._state.zones) == 3)
    running = actor._turns.running
    cancelled = ref.actor_ref.ask(Cancel(), block=False)
    wait_until(lambda: running.abort_reason is not None)
    store.writing.open()
    assert cancelled.get(timeout=WAIT)
    with pytest.raises(TurnCancelled):
        reply.get(timeout=WAIT)
    assert texts(ref.ask(Incremental())) == ["go", "", "paid"]
    crash(store)
    assert texts(talk(store=store, id="c").ask(Incremental())) == ["go", "", "paid"]


def test_a_result_that_comes_while_its_round_is_kept_is_not_kept_twice(talk: Talk) -> None:
    store, hold, loop = Held(), Hold(), Paying()
    loop.after = store.writing.shut
    ref = talk([CALL, hold, "never"], store=store, id="c")
    ref.actor_ref.ask(Send(messages=[Message.user("go")], loop=loop), block=False)
    wait_until_held(ref, 3)
    assert loop.done is not None
    loop.done(Message.tool("a", "paid again"))
    store.writing.open()
    wait_for(hold.entered)
    ref.ask(Append(Message.user("behind the note")))
    again = talk(store=store, id="c").ask(Incremental())
    assert texts(again) == ["go", "", "paid", "behind the note"]
    hold.release()


def test_turns_that_waited_at_a_crash_were_never_asked(talk: Talk, seen: Seen) -> None:
    store, hold = MemoryStore(), Hold()
    ref = talk([hold, "never"], store=store, id="c")
    ref.actor_ref.ask(Send(messages=[Message.user("first")]), block=False)
    wait_for(hold.entered)
    ref.actor_ref.ask(Send(messages=[Message.user("second")]), block=False)
    assert ref.ask(Len()) == 0
    again = talk(store=store, id="c", on_change=seen)
    assert texts(again.ask(Incremental())) == ["first"]
    assert len(seen.wait_for(events.TurnLost)) == 1
    hold.release()


@pytest.mark.parametrize("durable", [False, True])
def test_what_arrived_and_is_no_text_does_not_keep_others_from_the_end(
    talk: Talk, *, durable: bool
) -> None:
    hold = Hold()
    config = {"store": MemoryStore(), "id": "c"} if durable else {}
    ref = talk([[TextDelta("\ud800"), hold]], **config)
    stream = ref.ask(SendStream(messages=[Message.user("hi")]))
    waiting = ref.actor_ref.ask(Send(messages=[Message.user("hi")]), block=False)
    wait_for(hold.entered)
    ref.stop()
    with pytest.raises(ConversationClosed):
        waiting.get(timeout=WAIT)
    with pytest.raises(Exception, match="JSON"):
        list(stream)
    hold.release()


def test_a_turn_that_stores_nothing_leaves_a_durable_conversation_as_it_was(talk: Talk) -> None:
    store = MemoryStore()
    ref = talk(["one", "two"], store=store, id="c")
    manual = SendOptions(commit="manual")
    assert ref.ask(Send(manual, [Message.user("hi")])).message.text == "one"
    assert ref.ask(Len()) == 0
    assert [entry.kind for entry in store.entries("c")] == ["begun"]
    assert store.claim("c").draft is None


@pytest.mark.parametrize(
    "result", ["text", Message.tool("a", "x").model_copy(update={"id": "\ud800"})]
)
def test_a_result_that_can_not_be_stored_is_refused_where_it_is_told(
    talk: Talk, result: Message
) -> None:
    refused: list[Exception] = []

    class Careless:
        async def answer(
            self, completion: Completion, done: Callable[[Message], object]
        ) -> ToolRound | None:
            try:
                done(result)
            except InvalidMessage as error:
                refused.append(error)
            return ToolRound([Message.tool("a", "fine")])

    ref = talk([CALL, "one"], store=MemoryStore(), id="c")
    ref.ask(Send(messages=[Message.user("go")], loop=Careless()))
    assert len(refused) == 1
    assert texts(ref.ask(Incremental())) == ["go", "", "fine", "one"]
