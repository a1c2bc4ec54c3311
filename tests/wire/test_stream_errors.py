"""An error that a stream reports in any shape ends it: never a success after an error."""

import json
from typing import Any

import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.stream_events import StreamEvent
from agent_context.wire.chat import ChunkReader, parse_completion
from agent_context.wire.responses import ResponsesReader
from agent_context.wire.sse import SseDecoder

TEXT = b'data: {"choices": [{"delta": {"content": "par"}}]}\n\n'
ITEM_TEXT = b'data: {"type": "response.output_text.delta", "delta": "par"}\n\n'
DONE = b"data: [DONE]\n\n"
COMPLETED = b'data: {"type": "response.completed", "response": {"status": "completed"}}\n\n'

ERRORS = [
    b'data: {"error": {"message": "no", "code": 500}}\n\n',
    b'data: {"error": "no"}\n\n',
    b'data: {"error": [{"message": "no"}]}\n\n',
    b'data: {"error": {"error": {"message": "no"}}}\n\n',
    b'data: {"object": "error", "message": "no", "code": 400}\n\n',
    b'data: {"type": "error", "message": "no"}\n\n',
    b'data: {"code": 50000, "message": "no"}\n\n',
    b'data: {"code": "1305", "msg": "no", "choices": []}\n\n',
    b'data: {"detail": "no"}\n\n',
    b'data: {"error_code": 336, "error_msg": "no"}\n\n',
    b'data: {"errors": [{"message": "no"}]}\n\n',
    b'event: error\ndata: {"message": "no"}\n\n',
    b'event: error\ndata: {"error": {"message": "no"}}\n\n',
    b"event:error\ndata: no\n\n",
    b'data: error: {"message": "no"}\n\n',
    b"data: error: no\n\n",
    b'error: {"message": "no"}\n\n',
    b"error: no\n",
    b'{"error": {"message": "no"}}\n',
    b'{"detail": "no"}\n\n',
    b"data: upstream closed: no\n\n",
]


def outcome(reader: ChunkReader | ResponsesReader, stream: bytes) -> list[StreamEvent]:
    decoder = SseDecoder()
    payloads = [*decoder.feed(stream), *decoder.close()]
    events = [event for payload in payloads for event in reader.read(payload)]
    return [*events, reader.finish()]


@pytest.mark.parametrize("said", ERRORS)
def test_chat_completions_that_report_an_error_are_none(said: bytes) -> None:
    with pytest.raises(BackendError, match="no"):
        outcome(ChunkReader("any"), TEXT + said + DONE)


@pytest.mark.parametrize("said", ERRORS)
def test_a_response_that_reports_an_error_is_none(said: bytes) -> None:
    with pytest.raises(BackendError, match="no"):
        outcome(ResponsesReader("any"), ITEM_TEXT + said + COMPLETED)


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {}, "finish_reason": "error"},
        {"delta": {}, "finish_reason": "abort"},
        {"delta": {"content": ""}, "error": {"message": "no", "code": 502}},
    ],
)
def test_a_choice_may_report_it(choice: dict[str, Any]) -> None:
    end = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

    with pytest.raises(BackendError) as caught:
        outcome(ChunkReader("any"), TEXT + end + DONE)

    assert caught.value.retryable


@pytest.mark.parametrize(
    "healthy",
    [
        {"error": None, "choices": []},
        {"choices": [], "prompt_filter_results": [{}]},
        {"code": 0, "msg": "success", "choices": []},
        {"type": "ping"},
        {"choices": [{"delta": {"content": ""}}], "message": "", "code": 200},
    ],
)
def test_what_is_healthy_is_no_error(healthy: dict[str, Any]) -> None:
    reader = ChunkReader("any")
    reader.feed({"choices": [{"delta": {"content": "all"}}]})
    reader.feed(healthy)

    assert reader.finish().completion.message.text == "all"


def test_a_whole_answer_may_be_an_error() -> None:
    with pytest.raises(BackendError) as caught:
        parse_completion({"object": "error", "code": 429, "message": "slow down"}, vendor="any")

    assert caught.value.kind is ErrorKind.RATE_LIMITED


def test_half_a_call_before_the_end_is_none() -> None:
    call = b'[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\\"a\\":"}}]'
    half = b'data: {"choices": [{"delta": {"content": "x", "tool_calls": ' + call + b"}}]}\n\n"

    with pytest.raises(BackendError) as caught:
        outcome(ChunkReader("any"), half + DONE)

    assert (caught.value.kind, caught.value.retryable) == (ErrorKind.TRANSPORT, True)
