"""What one writes every day: `say`, `stream`, `Send("Hi")`, `with`."""

from __future__ import annotations

import asyncio

import pytest

from agent_context import (
    AgentContext,
    ContextRef,
    Host,
    Incremental,
    Message,
    Send,
    SendOptions,
    SendStream,
    TextDelta,
)
from agent_context.errors import (
    BackendError,
    ConversationClosed,
    TurnCancelled,
    UsageError,
)
from agent_context.stores.memory import MemoryStore
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.support.waiting import wait_for


def talk(*script: str | BackendError) -> ContextRef:
    return AgentContext.start(ScriptedBackend(script))


def said(ctx: ContextRef) -> list[str]:
    return [message.text for message in ctx.ask(Incremental())]


def test_something_is_said_and_answered() -> None:
    with talk("Hello.") as ctx:
        answer = ctx.say("Hi!")

        assert (answer.text, str(answer)) == ("Hello.", "Hello.")
        assert said(ctx) == ["Hi!", "Hello."]


async def test_something_is_said_and_answered_on_an_event_loop() -> None:
    async with await AgentContext.astart(ScriptedBackend(["Hello."])) as ctx:
        assert (await ctx.asay(Message.user("Hi!"))).text == "Hello."


def test_what_is_said_may_have_options_and_a_key() -> None:
    backend = ScriptedBackend(["Hello."])
    with AgentContext.start(backend, store=MemoryStore(), id="c") as ctx:
        first = ctx.say("Hi!", SendOptions(temperature=0.5), key="k")

        assert ctx.say("Hi!", SendOptions(temperature=0.5), key="k").message == first.message
        assert [request.options.temperature for request in backend.requests] == [0.5]


def test_the_words_of_an_answer_are_iterated_over() -> None:
    with talk("Hello there.") as ctx:
        words = ctx.stream("Hi!")

        assert "".join(words) == "Hello there."
        assert words.completion.text == "Hello there."


async def test_the_words_of_an_answer_are_iterated_over_on_an_event_loop() -> None:
    async with talk("Hello there.") as ctx:
        assert "".join([text async for text in ctx.stream("Hi!")]) == "Hello there."


def test_a_turn_that_is_streamed_begins_with_the_first_word() -> None:
    with talk("Hello.") as ctx:
        words = ctx.stream("Hi!")

        assert said(ctx) == []
        with pytest.raises(UsageError, match="has not begun"):
            _ = words.completion


def test_what_goes_wrong_is_raised_where_the_words_are_read() -> None:
    with talk(BackendError("down")) as ctx, pytest.raises(BackendError, match="down"):
        list(ctx.stream("Hi!"))


def test_leaving_the_block_of_a_stream_cancels_its_turn() -> None:
    with talk("word " * 5_000, "next") as ctx:
        with ctx.stream("Hi!", SendOptions(on_abort="discard")) as words:
            next(iter(words))

        assert ctx.say("again").text == "next"
        assert said(ctx)[-2:] == ["again", "next"]


async def test_a_task_that_is_cancelled_in_the_block_of_a_stream_cancels_its_turn() -> None:
    hold = Hold()
    async with AgentContext.start(ScriptedBackend([hold, "never"])) as ctx:
        words = ctx.stream("Hi!")

        async def read() -> None:
            async with words:
                assert [text async for text in words] == []

        reading = asyncio.create_task(read())
        await asyncio.to_thread(wait_for, hold.entered)
        reading.cancel()
        await asyncio.wait([reading])

        with pytest.raises(TurnCancelled):
            _ = words.completion


def test_a_block_stops_its_conversation() -> None:
    with talk() as ctx:
        pass

    with pytest.raises(ConversationClosed):
        ctx.say("Hi!")


def test_a_block_of_a_hosts_conversation_ends_that_reference_alone() -> None:
    with Host(MemoryStore(), ScriptedBackend(["one", "two"])) as host:
        with host.get("c") as ctx:
            ctx.say("first")

        assert host.get("c").say("second").text == "two"


def test_a_send_may_begin_with_what_is_said() -> None:
    message = Message.user("Hi!")
    options = SendOptions(temperature=0.5)

    assert Send(message, options, key="k") == Send(options, (message,), key="k")
    assert [said.text for said in SendStream("Hi!").messages] == ["Hi!"]


def test_a_send_says_one_thing_in_one_way() -> None:
    with pytest.raises(UsageError, match="say it first or as messages, not both"):
        Send("Hi!", messages=[Message.user("Ho!")])  # type: ignore[call-overload]


class Closing(ScriptedBackend):
    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


async def test_a_block_closes_its_backend() -> None:
    async with Closing() as one:
        pass
    with Closing() as other:
        pass

    assert (one.closed, other.closed) == (1, 1)


def test_a_block_of_an_agent_keeps_what_was_said() -> None:
    store = MemoryStore()
    with ScriptedBackend(["Hello."]).as_agent(store=store) as agent:
        agent.run_sync("Hi!", session=agent.create_session("s"))

    about = store.info("s")
    assert about is not None
    assert about.owner is None


async def test_a_plain_block_of_an_agent_is_refused_where_an_event_loop_runs() -> None:
    with pytest.raises(UsageError, match="async with"), ScriptedBackend().as_agent():
        pass


def test_a_stream_event_tells_more_than_the_words() -> None:
    with talk("Hello.") as ctx, ctx.ask(SendStream("Hi!")) as stream:
        texts = [event.text for event in stream if isinstance(event, TextDelta)]

    assert "".join(texts) == "Hello."
