"""A character may come in two halves, in any text of an answer."""

import json
from typing import Any

import pytest

from agent_context._context.stored_message import from_message
from agent_context.stream_events import StreamAccumulator, StreamEvent
from agent_context.wire.chat import ChunkReader
from agent_context.wire.responses import ResponsesReader

HALVES = ["a\ud83d", "\ude00b"]


def read(reader: ChunkReader | ResponsesReader, *chunks: object) -> list[StreamEvent]:
    return [event for chunk in chunks for event in reader.read(json.dumps(chunk).encode())]


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": delta, "finish_reason": reason}]}


def call(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": "a", "function": function}]}


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_halves_in_two_chunks_are_one_character(field: str) -> None:
    reader = ChunkReader("any")

    events = read(reader, *(chunk({field: half}) for half in HALVES), chunk({}, "stop"))

    message = reader.finish().completion.message if field == "content" else None
    assembled = StreamAccumulator.from_events(events).to_message()
    assert (assembled.text or assembled.reasoning) == "a😀b"
    assert message is None or message.text == "a😀b"


def test_halves_in_arguments_are_one_character() -> None:
    reader = ChunkReader("any")

    read(reader, chunk(call('{"a": "\ud83d')), chunk(call('\ude00"}')), chunk({}, "tool_calls"))

    [made] = reader.finish().completion.message.tool_calls
    assert made.arguments == '{"a": "😀"}'


def test_text_and_thoughts_between_the_halves_do_no_harm() -> None:
    reader = ChunkReader("any")

    read(reader, chunk({"content": HALVES[0]}), chunk({"reasoning": "\ud83d"}))
    read(reader, chunk({"content": HALVES[1]}), chunk({"reasoning": "\ude01"}, "stop"))

    message = reader.finish().completion.message
    assert (message.text, message.reasoning) == ("a😀b", "😁")


@pytest.mark.parametrize("lost", [["a\ud83d"], ["\ude00b", "c"], ["a\ud83d", "\ud83d\ude00"]])
def test_a_half_that_stays_alone_is_replaced(lost: list[str]) -> None:
    reader = ChunkReader("any")

    read(reader, *(chunk({"content": text}) for text in lost), chunk({}, "stop"))

    message = reader.finish().completion.message
    assert "\ufffd" in message.text
    assert from_message(message)


def test_halves_in_unknown_fields_do_no_harm() -> None:
    reader = ChunkReader("any")
    details = [{"type": "reasoning.text", "index": 0, "text": "\ud83d"}]
    signed = call("{}")
    signed["tool_calls"][0] |= {"extra": {"text": "\ud83d"}, "id": "\ud83d"}

    read(reader, chunk({"reasoning_details": details, **signed}, "tool_calls"))

    assert from_message(reader.finish().completion.message)


@pytest.mark.parametrize("kind", ["output_text", "reasoning_text", "function_call_arguments"])
def test_halves_in_two_events_of_a_response_are_one_character(kind: str) -> None:
    reader = ResponsesReader("any")
    raw = {"type": "function_call", "id": "f", "call_id": "a", "name": "f", "arguments": ""}
    deltas = [{"type": f"response.{kind}.delta", "delta": half} for half in HALVES]
    opened = [{"type": "response.output_item.added", "item": raw}] if "call" in kind else []

    read(reader, *opened, *deltas)
    read(reader, {"type": "response.completed", "response": {"status": "completed"}})

    message = reader.finish().completion.message
    written = message.tool_calls[0].arguments if opened else message.text or message.reasoning
    assert written == "a😀b"
