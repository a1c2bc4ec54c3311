import asyncio
import threading
from typing import Any

import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message, ToolCall, Usage
from agent_context.options import SendOptions
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from agent_context.testing import request_of
from agent_context_backends.scripted import Hold, ScriptedBackend, ScriptEnded
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio


async def asked(backend: ScriptedBackend, text: str = "q") -> Completion:
    return await backend.send(request_of(backend, Message.user(text)))


async def streamed(backend: ScriptedBackend) -> list[StreamEvent]:
    return [event async for event in backend.send_stream(request_of(backend, Message.user("q")))]


async def test_texts_are_answered_in_turn_and_requests_are_kept() -> None:
    backend = ScriptedBackend(["one", "two"])

    answers = [(await asked(backend, text)).message.text for text in ("a", "b")]

    assert answers == ["one", "two"]
    assert [request.records[-1].message.text for request in backend.requests] == ["a", "b"]


async def test_a_text_streams_in_several_pieces() -> None:
    events = await streamed(ScriptedBackend(["Hello world"]))

    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(texts) > 1
    assert "".join(texts) == "Hello world"
    assert isinstance(events[-1], Finished)
    assert events[-1].completion.message.text == "Hello world"


async def test_a_message_streams_reasoning_and_calls_too() -> None:
    call = ToolCall(id="c1", name="f", arguments='{"a": 1}')
    message = Message.assistant("Hi", reasoning="so", tool_calls=[call])

    events = await streamed(ScriptedBackend([message]))

    assert events[0] == ReasoningDelta("so")
    assert ToolCallDelta(0, "c1", "f", '{"a"') in events
    assert isinstance(events[-1], Finished)
    completion = events[-1].completion
    assert completion.message.tool_calls == (call,)
    assert completion.finish_reason is FinishReason.TOOL_CALLS is completion.message.finish_reason


async def test_a_completion_is_answered_as_it_is() -> None:
    completion = Completion(
        message=Message.assistant("cut"),
        finish_reason=FinishReason.LENGTH,
        usage=Usage(input_tokens=7),
    )

    assert await asked(ScriptedBackend([completion])) == completion


async def test_usage_is_estimated_unless_it_is_given() -> None:
    given: list[StreamEvent] = [TextDelta("a"), UsageReported(Usage(cached_tokens=4))]
    backend = ScriptedBackend(["Hello world", given])

    first, second = await asked(backend), await asked(backend)

    assert first.usage.input_tokens
    assert first.usage.output_tokens
    assert second.usage == Usage(cached_tokens=4)


async def test_events_stream_as_they_are() -> None:
    events: list[StreamEvent] = [TextDelta("a"), ToolCallDelta(0, "c1", "f", "{}")]

    found = await streamed(ScriptedBackend([events]))

    assert found[:2] == events
    assert isinstance(found[-1], Finished)
    assert found[-1].completion.finish_reason is FinishReason.TOOL_CALLS


async def test_a_function_answers_from_the_request() -> None:
    def echo(request: Any) -> str:
        return f"{request.options.model}: {request.records[-1].message.text}"

    backend = ScriptedBackend([echo])
    request = request_of(backend, Message.user("hi"), options=SendOptions(model="m"))

    assert (await backend.send(request)).message.text == "m: hi"


@pytest.mark.parametrize("error", [BackendError("no", kind=ErrorKind.QUOTA), ValueError("bug")])
async def test_an_exception_is_raised(error: Exception) -> None:
    backend = ScriptedBackend([error, [TextDelta("a"), error]])

    with pytest.raises(type(error)):
        await asked(backend)
    stream = backend.send_stream(request_of(backend))
    assert await anext(stream) == TextDelta("a")
    with pytest.raises(type(error)):
        await anext(stream)


async def test_the_end_of_the_script_is_an_error() -> None:
    backend = ScriptedBackend("only one")
    await asked(backend)

    with pytest.raises(ScriptEnded, match="no answer to request 2: it has 1"):
        await asked(backend)


async def test_a_hold_stops_the_next_answer_until_released() -> None:
    hold = Hold()
    task = asyncio.create_task(asked(ScriptedBackend([hold, "late"])))
    await asyncio.to_thread(wait_for, hold.entered)
    assert not task.done()

    threading.Thread(target=hold.release).start()

    assert (await task).message.text == "late"
    assert hold.released


async def test_a_hold_among_events_stops_the_stream_there() -> None:
    hold = Hold()
    backend = ScriptedBackend([[TextDelta("a"), hold, TextDelta("b")]])
    stream = backend.send_stream(request_of(backend))
    assert await anext(stream) == TextDelta("a")
    rest = asyncio.ensure_future(anext(stream))
    await asyncio.to_thread(wait_for, hold.entered)
    assert not rest.done()

    hold.release()

    assert await rest == TextDelta("b")


async def test_a_held_answer_can_be_cancelled() -> None:
    hold = Hold()
    task = asyncio.create_task(asked(ScriptedBackend([hold, "never"])))
    await asyncio.to_thread(wait_for, hold.entered)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    hold.release()


async def test_a_released_hold_holds_nothing() -> None:
    hold = Hold()
    hold.release()

    assert (await asked(ScriptedBackend([hold, "now"]))).message.text == "now"
    assert hold.entered.is_set()
