"""What stands around the model's calls of a turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from agent_context import (
    Completion,
    Incremental,
    Message,
    Send,
    SendOptions,
    SendStream,
    Stream,
    TextDelta,
    ToolCall,
)
from agent_context.errors import AgentContextError, BackendError, InvalidOptions, UsageError
from agent_context.model_call import ModelCall
from agent_context.tools import Toolbox, tool
from agent_context.tools.loop import ToolLoopRunner
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Talk

Proceed = Callable[[ModelCall], Awaitable[Completion]]


class Refused(AgentContextError):
    """Somebody did not like an answer."""


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


def words(stream: Stream) -> str:
    return "".join(event.text for event in stream if isinstance(event, TextDelta))


async def refuse(call: ModelCall, proceed: Proceed) -> Completion:
    raise Refused((await proceed(call)).text)


async def answer_itself(call: ModelCall, proceed: Proceed) -> Completion:
    return Completion(message=Message.assistant("from the cache"))


async def try_again(call: ModelCall, proceed: Proceed) -> Completion:
    try:
        return await proceed(call)
    except BackendError:
        return await proceed(call)


def test_it_may_change_the_options_of_a_call(talk: Talk) -> None:
    async def cooler(call: ModelCall, proceed: Proceed) -> Completion:
        return await proceed(
            replace(call, options=call.options.model_copy(update={"temperature": 0.1}))
        )

    backend = ScriptedBackend(["Hello."])
    talk(backend).ask(Send("Hi!", SendOptions(temperature=0.9), around=cooler))

    assert [request.options.temperature for request in backend.requests] == [0.1]


def test_it_sees_what_would_be_sent(talk: Talk) -> None:
    seen: list[str] = []

    async def look(call: ModelCall, proceed: Proceed) -> Completion:
        seen.extend(message.text for message in call.messages)
        return await proceed(call)

    ctx = talk(ScriptedBackend(["Hello.", "Bye."]))
    ctx.say("Hi!")
    ctx.ask(Send("And now?", SendOptions(scratch="It is noon."), around=look))

    assert seen == ["Hi!", "Hello.", "And now?", "It is noon."]


def test_it_may_answer_without_the_model(talk: Talk) -> None:
    ctx = talk(ScriptedBackend([]))

    assert ctx.ask(Send("Hi!", around=answer_itself)).text == "from the cache"
    assert texts(ctx.ask(Incremental())) == ["Hi!", "from the cache"]


def test_an_answer_of_its_own_is_streamed_too(talk: Talk) -> None:
    with talk(ScriptedBackend([])).ask(SendStream("Hi!", around=answer_itself)) as stream:
        assert words(stream) == "from the cache"


def test_it_may_call_again(talk: Talk) -> None:
    ctx = talk(ScriptedBackend([BackendError("down"), "Hello."]))

    assert ctx.ask(Send("Hi!", around=try_again)).text == "Hello."
    assert texts(ctx.ask(Incremental())) == ["Hi!", "Hello."]


@pytest.mark.parametrize("streamed", [False, True])
def test_of_an_answer_that_it_refuses_nothing_is_stored(talk: Talk, streamed: bool) -> None:
    ctx = talk(ScriptedBackend(["Hello.", "next"]))

    def ask() -> object:
        if streamed:
            return list(ctx.ask(SendStream("Hi!", around=refuse)))
        return ctx.ask(Send("Hi!", around=refuse))

    with pytest.raises(Refused, match="Hello"):
        ask()

    assert ctx.ask(Incremental()) == ()
    assert ctx.say("again").text == "next"


def test_it_may_change_the_answer_that_is_stored(talk: Talk) -> None:
    async def redact(call: ModelCall, proceed: Proceed) -> Completion:
        answer = await proceed(call)
        said = Message.assistant(answer.text.replace("secret", "***"))
        return answer.model_copy(update={"message": said})

    ctx = talk(ScriptedBackend(["The secret word."]))

    assert ctx.ask(Send("Hi!", around=redact)).text == "The *** word."
    assert texts(ctx.ask(Incremental())) == ["Hi!", "The *** word."]


def test_it_stands_around_each_call_of_a_turn_with_tools(talk: Talk) -> None:
    rounds: list[int] = []

    async def count(call: ModelCall, proceed: Proceed) -> Completion:
        rounds.append(call.round)
        return await proceed(call)

    @tool
    async def look() -> str:
        """Look."""
        return "blue"

    calls = Message.assistant(tool_calls=[ToolCall(id="a", name="look", arguments="{}")])
    loop = ToolLoopRunner(Toolbox([look]))
    ctx = talk(ScriptedBackend([calls, "It is blue."]))

    assert ctx.ask(Send("Colour?", loop=loop, around=count)).text == "It is blue."
    assert rounds == [0, 1]


@pytest.mark.parametrize("answer", [None, "text", Message.assistant("no completion")])
def test_what_is_no_completion_ends_the_turn(talk: Talk, answer: object) -> None:
    async def wrong(call: ModelCall, proceed: Proceed) -> Completion:
        return answer  # type: ignore[return-value]

    ctx = talk(ScriptedBackend(["next"]))

    with pytest.raises(BackendError, match="Completion of an assistant"):
        ctx.ask(Send("Hi!", around=wrong))
    assert ctx.say("again").text == "next"


def test_what_can_not_be_called_is_refused_before_anything_happens(talk: Talk) -> None:
    with pytest.raises((InvalidOptions, UsageError), match="around"):
        talk(ScriptedBackend([])).ask(Send("Hi!", around=3))  # type: ignore[call-overload]


def test_the_next_request_begins_with_the_last_one_after_an_answer_of_its_own(talk: Talk) -> None:
    backend = ScriptedBackend(["one", "three"])
    ctx = talk(backend)
    ctx.say("first")
    ctx.ask(Send("second", around=answer_itself))
    ctx.say("third")

    sent = [record.message.text for record in backend.requests[-1].records]
    assert sent == ["first", "one", "second", "from the cache", "third"]
