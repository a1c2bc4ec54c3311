"""Answers of the Responses API, as their servers write them differently."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import FinishReason, Message, Usage
from agent_context.stream_events import (
    ReasoningDelta,
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from agent_context.wire.responses import ResponsesReader, parse_completion, parse_event, parse_usage
from agent_context.wire.sse import SseDecoder
from tests.histories import call_item, message_item, reasoning_item
from tests.wire.fixtures import payload

DATA = Path(__file__).parents[1] / "data" / "responses_streams.jsonl"
STREAMS: dict[str, list[dict[str, Any]]] = {
    case["id"]: case["events"] for case in map(json.loads, DATA.read_text("utf-8").splitlines())
}


def read(*events: dict[str, Any]) -> tuple[ResponsesReader, list[StreamEvent]]:
    reader = ResponsesReader("openai", "r1")
    return reader, [found for event in events for found in reader.feed(event)]


def response(*output: dict[str, Any], status: str = "completed", **more: Any) -> dict[str, Any]:
    fields = {"id": "resp_1", "object": "response", "model": "m-1", "status": status}
    return {**fields, "output": list(output), "error": None, **more}


def ended(kind: str, *output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "response": response(*output, status=kind, **more)}


def delta(kind: str, text: str, index: int | None = 0, **more: Any) -> dict[str, Any]:
    place = {} if index is None else {"output_index": index}
    return {"type": f"response.{kind}.delta", "delta": text, **place, **more}


def item(step: str, raw: dict[str, Any], index: int = 0) -> dict[str, Any]:
    return {"type": f"response.output_item.{step}", "output_index": index, "item": raw}


def message_of(*events: dict[str, Any]) -> Message:
    return read(*events)[0].finish().completion.message


def test_a_recorded_tool_call() -> None:
    reader, events = read(*STREAMS["deepseek-call"])

    completion = reader.finish().completion

    usage = Usage(input_tokens=366, output_tokens=59, cached_tokens=256, reasoning_tokens=14)
    assert events == [
        ReasoningDelta("I'll"),
        ReasoningDelta(" call"),
        ToolCallDelta(0, "call_00_x", "f", ""),
        ToolCallDelta(0, arguments='{"a"'),
        ToolCallDelta(0, arguments=": 1}"),
        UsageReported(usage),
    ]
    assert completion.finish_reason is FinishReason.TOOL_CALLS
    assert completion.raw_finish_reason == "completed"
    assert completion.usage == usage
    assert (completion.model, completion.request_id) == ("deepseek-flash", "r1")
    assert (
        completion.message.extra["output_items"]
        == STREAMS["deepseek-call"][-1]["response"]["output"]
    )


def test_an_answer_in_phases_with_a_summary_in_parts() -> None:
    reader, events = read(*STREAMS["openai-answer"])

    completion = reader.finish().completion

    assert completion.message.reasoning == "First\n\nSecond"
    assert completion.message.text == "Let me see\n\nFour"
    assert [raw["type"] for raw in completion.message.extra["output_items"]] == [
        "reasoning",
        "message",
        "message",
    ]
    assert completion.message.extra["output_items"][0]["encrypted_content"] == "gAAA"
    assert completion.usage.cache_write_tokens == 20
    assert StreamAccumulator.from_events(events).to_message().text == completion.message.text


@pytest.mark.parametrize("name", list(STREAMS))
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_stream_may_be_cut_anywhere(name: str, size: int) -> None:
    data = b"".join(
        f"event: {event['type']}\r\ndata: {json.dumps(event)}\r\n\r\n".encode()
        for event in STREAMS[name]
    )
    decoder, reader = SseDecoder(), ResponsesReader("openai", "r1")

    events = [
        event
        for at in range(0, len(data), size)
        for found in decoder.feed(data[at : at + size])
        for event in reader.read(found)
    ]

    assert events == read(*STREAMS[name])[1]


@pytest.mark.parametrize("name", list(STREAMS))
def test_what_comes_only_at_the_end_counts_as_much(name: str) -> None:
    events = STREAMS[name]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    whole = message_of(*events)

    for part in ([*done, events[-1]], [ended("completed", *(event["item"] for event in done))]):
        message = message_of(*part)
        assert (message.text, message.reasoning) == (whole.text, whole.reasoning)
        assert message.tool_calls == whole.tool_calls
        assert message.extra == whole.extra


def test_a_whole_answer() -> None:
    said = response(reasoning_item("openai", "hm"), message_item("hi"), usage={"input_tokens": 3})

    completion = parse_completion(said, vendor="openai")

    assert (completion.message.text, completion.message.reasoning) == ("hi", "hm")
    assert completion.usage == Usage(input_tokens=3)
    assert completion.request_id == "resp_1"


def test_items_that_say_no_more_than_the_message_are_not_kept() -> None:
    plain = {**message_item("hi"), "phase": None}

    assert parse_completion(response(plain), vendor="openai").message.extra == {}


def test_deltas_find_their_call_by_index_by_id_or_as_the_last() -> None:
    one, two = ({**call_item(name), "id": f"i{name}", "arguments": ""} for name in "ab")
    kind = "function_call_arguments"

    message = message_of(
        item("added", one, 0),
        item("added", two, 1),
        delta(kind, "1", 1),
        delta(kind, "2", None, item_id="ia"),
        delta(kind, "3", None),
        delta(kind, "4", 0, item_id="another each time"),
        ended("completed"),
    )

    assert [(call.id, call.arguments) for call in message.tool_calls] == [("a", "24"), ("b", "13")]


def test_servers_may_number_every_item_the_same() -> None:
    message = message_of(
        item("added", call_item("a")),
        item("done", call_item("a")),
        item("added", call_item("b")),
        item("done", call_item("b")),
        ended("completed", call_item("a"), call_item("b")),
    )

    assert [call.id for call in message.tool_calls] == ["a", "b"]


def test_a_refusal_is_text() -> None:
    assert message_of(delta("refusal", "no"), ended("completed")).text == "no"
    assert (
        message_of(
            {"type": "response.refusal.done", "output_index": 0, "refusal": "no"},
            ended("completed"),
        ).text
        == "no"
    )


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("max_output_tokens", FinishReason.LENGTH),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("steered", FinishReason.OTHER),
    ],
)
def test_an_incomplete_answer_says_why_and_has_no_half_call(why: str, reason: FinishReason) -> None:
    half = {**call_item("a"), "arguments": '{"x"'}
    reader, _ = read(
        delta("output_text", "so"),
        item("added", half, 1),
        ended("incomplete", incomplete_details={"reason": why}),
    )

    completion = reader.finish().completion

    assert (completion.finish_reason, completion.raw_finish_reason) == (reason, why)
    assert completion.message.tool_calls == ()
    assert completion.message.extra == {}


@pytest.mark.parametrize(
    ("why", "kind", "retryable"),
    [
        ("max_output_tokens", ErrorKind.EMPTY_RESPONSE, False),
        ("content_filter", ErrorKind.CONTENT_FILTERED, False),
        (None, ErrorKind.EMPTY_RESPONSE, True),
    ],
)
def test_an_answer_of_nothing_is_an_error(why: str, kind: ErrorKind, *, retryable: bool) -> None:
    reader, _ = read(ended("incomplete", incomplete_details={"reason": why}))

    with pytest.raises(BackendError) as caught:
        reader.finish()

    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


FAILURES = [
    ({"type": "error", "code": "context_length_exceeded", "message": "x"}, "context_overflow"),
    ({"type": "error", "error": {"code": "insufficient_quota", "message": "x"}}, "quota"),
    (ended("failed", error={"code": "rate_limit_exceeded", "message": "x"}), "rate_limited"),
    (ended("failed", error={"code": "server_error", "message": "x"}), "overloaded"),
    (ended("failed", error={"code": "invalid_prompt", "message": "x"}), "content_filtered"),
    (ended("failed"), "overloaded"),
    (ended("completed", error={"code": "invalid_encrypted_content", "message": "x"}),
     "history_rejected"),
    ({"error": {"message": "gone", "code": 503}}, "overloaded"),
    (response(status="in_progress"), "protocol"),
    (response(status="cancelled"), "protocol"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "kind"), FAILURES)
def test_a_failure_in_the_stream_has_its_class(event: dict[str, Any], kind: str) -> None:
    with pytest.raises(BackendError) as caught:
        read(event)

    assert (caught.value.kind, caught.value.vendor) == (kind, "openai")
    assert caught.value.request_id == "r1"


def test_an_overflow_in_a_stream_of_status_200() -> None:
    decoder, reader = SseDecoder(), ResponsesReader("openai")
    found = [
        one for text in payload("oa-overflow-in-stream") for one in decoder.feed(text.encode())
    ]

    with pytest.raises(BackendError) as caught:
        [reader.read(one) for one in found]

    assert caught.value.kind is ErrorKind.CONTEXT_OVERFLOW


def test_a_stream_that_only_stops_has_not_finished() -> None:
    reader, _ = read(*STREAMS["openai-answer"][:-1])

    assert not reader.finished
    assert read(*STREAMS["openai-answer"])[0].finished


@pytest.mark.parametrize("data", [b"<html>", b"[]", b"3"])
def test_what_is_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        ResponsesReader("openai").read(data)

    assert caught.value.kind is ErrorKind.PROTOCOL


def test_done_and_unknown_events_say_nothing() -> None:
    reader = ResponsesReader("openai")

    assert reader.read(b"[DONE]") == []
    assert reader.feed({"type": "response.web_search_call.searching", "output_index": 0}) == []
    assert reader.feed({}) == []


def test_one_event_on_its_own() -> None:
    assert parse_event(delta("output_text", "a")) == (TextDelta("a"),)
    assert parse_event(item("added", call_item("a") | {"arguments": ""}, 3)) == (
        ToolCallDelta(3, "a", "f"),
    )
    assert parse_event(delta("function_call_arguments", "{", 3)) == (
        ToolCallDelta(3, arguments="{"),
    )


def test_no_usage_is_none() -> None:
    assert parse_usage(None) is parse_usage({}) is None


def test_an_answer_that_is_none_is_an_error() -> None:
    with pytest.raises(BackendError) as caught:
        parse_completion({"choices": []}, vendor="openai")

    assert caught.value.kind is ErrorKind.PROTOCOL


def test_a_long_answer_takes_linear_time() -> None:
    text = "x" * 20
    reader, events = read(*(delta("output_text", text) for _ in range(20_000)), ended("completed"))

    assert len(events) == 20_000
    assert len(reader.finish().completion.message.text) == 400_000


def added(name: str, call: str, function: str = "f", index: int = 0) -> dict[str, Any]:
    raw = {"type": "function_call", "id": name, "call_id": call, "name": function, "arguments": ""}
    return item("added", raw, index)


def written(text: object, name: str | None = None, index: int = 0) -> dict[str, Any]:
    named = {} if name is None else {"item_id": name}
    return {
        "type": "response.function_call_arguments.delta",
        "output_index": index,
        "delta": text,
        **named,
    }


def test_items_that_share_an_index_are_told_apart_by_their_ids() -> None:
    text: dict[str, Any] = {"type": "message", "id": "m1", "content": []}
    whole: dict[str, Any] = {**text, "content": [{"type": "output_text", "text": "so"}]}
    calls = [
        {
            "type": "function_call",
            "id": n,
            "call_id": n,
            "name": "f",
            "arguments": f'{{"x": "{n}"}}',
        }
        for n in ("a", "b")
    ]

    message = message_of(
        item("added", text),
        delta("output_text", "so", item_id="m1"),
        added("a", "a"),
        added("b", "b"),
        written('{"x": "a"}', "a"),
        written('{"x": "b"}', "b"),
        *(item("done", one) for one in (whole, *calls)),
        ended("completed", whole, *calls),
    )

    assert message.text == "so"
    assert [(one.id, one.arguments) for one in message.tool_calls] == [
        ("a", '{"x": "a"}'),
        ("b", '{"x": "b"}'),
    ]


def test_text_and_a_call_that_share_an_index_without_ids_are_told_apart() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'}
    said = {"type": "message", "content": [{"type": "output_text", "text": "so"}]}

    message = message_of(
        delta("output_text", "so"),
        item("added", {**call, "arguments": ""}),
        written('{"x": 1}'),
        ended("completed", said, call),
    )

    assert message.text == "so"
    assert [one.arguments for one in message.tool_calls] == ['{"x": 1}']


def test_an_item_may_have_another_id_in_each_event() -> None:
    message = message_of(
        added("x1", "a"),
        written('{"x"', "x2"),
        written(": 1}", "x3"),
        item("done", {**call_item("a"), "id": "x4", "arguments": '{"x": 1}'}),
        ended("completed", {**call_item("a"), "id": "x5"}),
    )

    assert [(one.id, one.arguments) for one in message.tool_calls] == [("a", '{"x": 1}')]


@pytest.mark.parametrize("where", ["delta", "done", "item", "end"])
def test_arguments_may_come_as_an_object(where: str) -> None:
    raw = {"type": "function_call", "id": "f1", "call_id": "a", "name": "f"}
    done = {"type": "response.function_call_arguments.done", "output_index": 0}
    steps = {
        "delta": [added("f1", "a"), written({"x": 1})],
        "done": [added("f1", "a"), {**done, "arguments": {"x": 1}}],
        "item": [item("done", {**raw, "arguments": {"x": 1}})],
        "end": [],
    }
    output = [{**raw, "arguments": {"x": 1}}] if where == "end" else []

    message = message_of(*steps[where], ended("completed", *output))

    assert [one.arguments for one in message.tool_calls] == ['{"x":1}']


def test_the_same_call_under_two_indexes_is_one() -> None:
    raw = call_item("a")

    message = message_of(
        item("done", raw), item("done", {**raw, "id": "fc_2"}, 1), ended("completed", raw)
    )

    assert [one.id for one in message.tool_calls] == ["a"]


def test_two_calls_under_one_id_are_two() -> None:
    one, two = call_item("a"), {**call_item("a"), "id": "fc_2", "arguments": '{"x": 2}'}

    message = message_of(ended("completed", one, two))

    assert [call.arguments for call in message.tool_calls] == ['{"x": 1}', '{"x": 2}']
    assert len({call.id for call in message.tool_calls}) == 2


def test_arguments_that_come_before_their_call_are_kept_and_a_call_without_a_name_is_none() -> None:
    nameless = {"type": "function_call", "id": "f2", "call_id": "b", "arguments": "{}"}

    message = message_of(
        written('{"x": 1}', "f1"),
        added("f1", "a"),
        item("done", nameless, 1),
        ended("completed"),
    )

    assert [(one.name, one.arguments) for one in message.tool_calls] == [("f", '{"x": 1}')]
