"""A backend that asks another model where the first one fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from agent_context import (
    AgentContext,
    BackendError,
    ContextBackend,
    ErrorKind,
    Message,
    Send,
    SendOptions,
    SendStream,
    StreamEvent,
    TextDelta,
)
from agent_context.errors import InvalidOptions
from agent_context.messages import Origin
from agent_context.testing import BackendContract
from agent_context_backends.anthropic import AnthropicBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.fallback import FallbackBackend
from agent_context_backends.scripted import ScriptedBackend

BUSY = BackendError("too busy", kind=ErrorKind.OVERLOADED, vendor="scripted", retryable=False)
REFUSED = BackendError("no such model", kind=ErrorKind.PROTOCOL, vendor="scripted")


def talk(*backends: ContextBackend, **options: Any) -> ContextBackend:
    return FallbackBackend(*backends, **options)


class TestFallback(BackendContract):
    def make_backend(self) -> ContextBackend:
        return FallbackBackend(ScriptedBackend(["Hello there"]), ScriptedBackend([]))

    def make_failing_backend(self) -> ContextBackend:
        return FallbackBackend(ScriptedBackend([BUSY]), ScriptedBackend([BUSY]))


def test_the_next_one_is_asked_where_the_first_one_is_busy() -> None:
    ctx = AgentContext.start(talk(ScriptedBackend([BUSY, "back"]), ScriptedBackend(["Hello."])))

    assert ctx.say("Hi!").text == "Hello."
    assert ctx.say("Hi again!").text == "back"


def test_other_errors_are_raised_as_they_are() -> None:
    ctx = AgentContext.start(talk(ScriptedBackend([REFUSED]), ScriptedBackend(["never"])))

    with pytest.raises(BackendError, match="no such model"):
        ctx.say("Hi!")


def test_what_the_last_one_says_is_raised() -> None:
    last = BackendError("too busy as well", kind=ErrorKind.OVERLOADED, retryable=False)
    ctx = AgentContext.start(talk(ScriptedBackend([BUSY]), ScriptedBackend([last])))

    with pytest.raises(BackendError, match="as well"):
        ctx.say("Hi!")


def test_a_stream_goes_over_while_nothing_has_arrived() -> None:
    ctx = AgentContext.start(talk(ScriptedBackend([BUSY]), ScriptedBackend(["Hello."])))

    with ctx.ask(SendStream("Hi!")) as stream:
        assert "".join(e.text for e in stream if isinstance(e, TextDelta)) == "Hello."


def test_a_stream_that_has_begun_stays_where_it_is() -> None:
    begun: list[StreamEvent | Exception] = [TextDelta("Hel"), BUSY]
    ctx = AgentContext.start(talk(ScriptedBackend([begun]), ScriptedBackend(["never"])))

    with pytest.raises(BackendError, match="too busy"):
        list(ctx.ask(SendStream("Hi!")))


def serve(bodies: list[Any], answer: Callable[[], httpx.Response]) -> httpx.MockTransport:
    def call(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return answer()

    return httpx.MockTransport(call)


def test_thoughts_of_the_first_vendor_do_not_go_to_the_next() -> None:
    bodies: list[Any] = []
    busy = serve([], lambda: httpx.Response(529, json={"error": {"type": "overloaded_error"}}))
    message = {"type": "message", "content": [{"type": "text", "text": "Hello."}]}
    other = serve(bodies, lambda: httpx.Response(200, json={**message, "stop_reason": "end_turn"}))
    backend = FallbackBackend(
        DeepSeekBackend(api_key="k", transport=busy),
        AnthropicBackend(api_key="k", transport=other),
        models={"anthropic": "claude-haiku-4-5"},
    )
    thought = Message.assistant("Oslo.", reasoning="Norway, so:").model_copy(
        update={"origin": Origin(vendor="deepseek", model="m")}
    )
    ctx = AgentContext.start(backend, options=SendOptions(model="deepseek-pro", retries=0))
    said = ctx.ask(Send(messages=[Message.user("Capital?"), thought, Message.user("Sure?")]))

    assert said.text == "Hello."
    assert said.message.origin is not None
    assert said.message.origin.vendor == "anthropic"
    assert bodies[0]["model"] == "claude-haiku-4-5"
    assert bodies[0]["messages"][1]["content"] == [{"type": "text", "text": "Oslo."}]


def test_one_alone_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="two backends or more"):
        FallbackBackend(ScriptedBackend([]))


async def test_all_are_closed() -> None:
    class Closing(ScriptedBackend):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    one, other = Closing(), Closing()
    async with FallbackBackend(one, other):
        pass

    assert (one.closed, other.closed) == (True, True)
