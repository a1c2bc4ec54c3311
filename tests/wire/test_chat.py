"""Answers of chat completions, as every vendor writes them differently."""

import json
from typing import Any

import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import FinishReason, Usage
from agent_context.stream_events import (
    ReasoningDelta,
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from agent_context.wire.chat import (
    ChunkReader,
    parse_chunk,
    parse_completion,
    parse_messages,
    parse_usage,
)
from agent_context.wire.sse import SseDecoder
from tests.wire.fixtures import payload


def chunk(delta: dict[str, Any] | None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "model": "m-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason}],
        **more,
    }


def call(
    index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    function = {k: v for k, v in {"name": name, "arguments": args}.items() if v is not None}
    fields = {"index": index, "id": id, "function": function}
    return {k: v for k, v in fields.items() if v is not None}


def calls(*fragments: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(fragments)}


def read(*chunks: dict[str, Any]) -> tuple[ChunkReader, list[StreamEvent]]:
    reader = ChunkReader("deepseek", "r1")
    return reader, [event for each in chunks for event in reader.feed(each)]


def replayed(name: str) -> tuple[ChunkReader, list[StreamEvent]]:
    decoder, reader = SseDecoder(), ChunkReader("deepseek")
    found = [one for text in payload(name) for one in decoder.feed(text.encode())]
    return reader, [event for one in found for event in reader.read(one)]


def called(reader: ChunkReader) -> list[tuple[str, str]]:
    message = reader.finish().completion.message
    return [(one.name, one.arguments) for one in message.tool_calls]


def test_an_answer_is_assembled_from_its_chunks() -> None:
    reader, events = read(
        chunk({"role": "assistant", "content": None, "reasoning_content": ""}),
        chunk({"content": None, "reasoning_content": "Let me"}),
        chunk({"content": "He", "reasoning_content": None}),
        chunk({"content": "llo"}),
        chunk({"content": "", "reasoning_content": None}, "stop", usage={"prompt_tokens": 9}),
    )

    completion = reader.finish().completion

    assert events == [
        ReasoningDelta("Let me"),
        TextDelta("He"),
        TextDelta("llo"),
        UsageReported(Usage(input_tokens=9)),
    ]
    assert completion.message.text == "Hello"
    assert completion.message.reasoning == "Let me"
    assert completion.message.origin is not None
    assert (completion.message.origin.vendor, completion.message.origin.model) == (
        "deepseek",
        "m-1",
    )
    assert completion.finish_reason is FinishReason.STOP is completion.message.finish_reason
    assert (completion.model, completion.request_id) == ("m-1", "r1")
    assert completion.usage == Usage(input_tokens=9)


def test_reasoning_may_have_its_newer_name() -> None:
    _, events = read(
        chunk({"reasoning": "so"}), chunk({"reasoning": "x", "reasoning_content": "x"})
    )

    assert events == [ReasoningDelta("so"), ReasoningDelta("x")]


def test_content_may_be_a_list_and_a_refusal_is_text() -> None:
    _, events = read(chunk({"content": [{"type": "text", "text": "a"}]}), chunk({"refusal": "no"}))

    assert events == [TextDelta("a"), TextDelta("no")]


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [call(0, "c1", "f", ""), call(0, args='{"a"'), call(0, args=":1}")],
            [("f", '{"a":1}')],
            id="as DeepSeek and OpenAI",
        ),
        pytest.param(
            [call(0, "c1", "f", "{}"), call(1, "c2", "g", "{}")],
            [("f", "{}"), ("g", "{}")],
            id="whole, as Zhipu",
        ),
        pytest.param(
            [
                call(0, "c1", "f", "{"),
                call(1, "c2", "g", "{"),
                call(0, args="}"),
                call(1, args="}"),
            ],
            [("f", "{}"), ("g", "{}")],
            id="interleaved",
        ),
        pytest.param(
            [call(0, "c1", "f", "{"), call(0, "c1", "f", "}")],
            [("f", "{}")],
            id="id and name repeated",
        ),
        pytest.param(
            [call(None, "c1", "f", '{"a"'), call(None, args=":1}")],
            [("f", '{"a":1}')],
            id="no index",
        ),
        pytest.param(
            [call(None, "c1", "f", "{"), call(None, "c2", "g", "{}"), call(None, "c1", args="}")],
            [("f", "{}"), ("g", "{}")],
            id="no index, told apart by id",
        ),
        pytest.param(
            [call(0, "c1", "f", "{}"), call(0, "c2", "g", "{}")],
            [("f", "{}"), ("g", "{}")],
            id="every call is number 0",
        ),
        pytest.param(
            [call(None, None, "f", "{}"), call(None, None, "g", "{}")],
            [("f", "{}"), ("g", "{}")],
            id="neither index nor id",
        ),
        pytest.param([call(0, "", "f", "{}")], [("f", "{}")], id="empty id"),
        pytest.param([call(0, "c1", "f", {"a": 1})], [("f", '{"a":1}')], id="arguments as object"),
        pytest.param(
            [call(0, "c1"), call(0, None, "f", "{}")], [("f", "{}")], id="name comes later"
        ),
    ],
)
def test_tool_calls_are_assembled(
    fragments: list[dict[str, Any]], expected: list[tuple[str, str]]
) -> None:
    apart, events = read(*(chunk(calls(one)) for one in fragments), chunk({}, "tool_calls"))
    together, _ = read(chunk(calls(*fragments), "tool_calls"))

    assert called(apart) == called(together) == expected
    assert (
        StreamAccumulator.from_events(events).to_message().tool_calls
        == apart.finish().completion.message.tool_calls
    )


def test_a_call_without_an_id_gets_one_of_its_own() -> None:
    first, _ = read(chunk(calls(call(0, None, "f", "{}")), "tool_calls"))
    second, _ = read(chunk(calls(call(0, None, "f", "{}")), "tool_calls"))

    ids = {reader.finish().completion.message.tool_calls[0].id for reader in (first, second)}

    assert len(ids) == 2
    assert all(0 < len(one) <= 40 for one in ids)


def test_long_arguments_take_linear_time() -> None:
    fragments = (chunk(calls(call(0, args="x" * 10))) for _ in range(50_000))

    reader, _ = read(chunk(calls(call(0, "c1", "f", ""))), *fragments)

    assert len(called(reader)[0][1]) == 500_000


@pytest.mark.parametrize("reason", ["length", "content_filter", "something_new"])
def test_an_unfinished_call_is_dropped(reason: str) -> None:
    reader, _ = read(
        chunk(calls(call(0, "c1", "f", '{"a":1}'), call(1, "c2", "g", '{"b":'))), chunk({}, reason)
    )

    assert called(reader) == [("f", '{"a":1}')]


def test_invalid_arguments_of_a_finished_call_are_kept_as_they_are() -> None:
    reader, _ = read(chunk(calls(call(0, "c1", "f", "{a}")), "tool_calls"))

    assert called(reader) == [("f", "{a}")]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("sensitive", FinishReason.CONTENT_FILTER),
        ("something_new", FinishReason.OTHER),
    ],
)
def test_finish_reasons_are_mapped_and_kept(raw: str, reason: FinishReason) -> None:
    reader, _ = read(chunk({"content": "a"}), chunk({}, raw))

    completion = reader.finish().completion

    assert (completion.finish_reason, completion.raw_finish_reason) == (reason, raw)
    assert completion.message.finish_reason is reason


def test_stop_after_tool_calls_means_tool_calls() -> None:
    reader, _ = read(chunk(calls(call(0, "c1", "f", "{}")), "stop"))

    completion = reader.finish().completion

    assert completion.finish_reason is FinishReason.TOOL_CALLS
    assert completion.raw_finish_reason == "stop"


@pytest.mark.parametrize(
    ("reason", "kind", "retryable"),
    [
        ("stop", ErrorKind.EMPTY_RESPONSE, True),
        (None, ErrorKind.EMPTY_RESPONSE, True),
        ("length", ErrorKind.EMPTY_RESPONSE, False),
        ("sensitive", ErrorKind.CONTENT_FILTERED, False),
        ("model_context_window_exceeded", ErrorKind.CONTEXT_OVERFLOW, False),
        ("insufficient_system_resource", ErrorKind.OVERLOADED, True),
    ],
)
def test_an_empty_answer_is_an_error(reason: str | None, kind: ErrorKind, retryable: bool) -> None:
    reader, _ = read(chunk({"role": "assistant", "content": ""}), chunk({"content": None}, reason))

    with pytest.raises(BackendError) as caught:
        reader.finish()

    assert (caught.value.kind, caught.value.retryable) == (kind, retryable)


def test_an_answer_of_half_a_call_alone_is_an_error() -> None:
    reader, _ = read(chunk(calls(call(0, "c1", "f", '{"a":')), "length"))

    with pytest.raises(BackendError, match="max_tokens"):
        reader.finish()


@pytest.mark.parametrize(
    "strange",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"tool_calls": None}}]},
        {"choices": [{"delta": {"tool_calls": [None]}}]},
        {"choices": [{"index": 1, "delta": {"content": "other"}}]},
        {"error": None, "usage": None},
        {"usage": {}},
    ],
)
def test_strange_chunks_do_no_harm(strange: dict[str, Any]) -> None:
    reader, _ = read(chunk({"content": "a"}), strange, chunk({"content": "b"}, "stop"))

    assert reader.finish().completion.message.text == "ab"


@pytest.mark.parametrize(
    ("raw", "usage"),
    [
        pytest.param(
            {
                "prompt_tokens": 339,
                "completion_tokens": 83,
                "prompt_cache_hit_tokens": 320,
                "prompt_cache_miss_tokens": 19,
                "completion_tokens_details": {"reasoning_tokens": 39},
            },
            Usage(input_tokens=339, output_tokens=83, cached_tokens=320, reasoning_tokens=39),
            id="DeepSeek",
        ),
        pytest.param(
            payload("oa-cache-zero-hit"),
            Usage(input_tokens=9200, output_tokens=20, cached_tokens=0, cache_write_tokens=9200),
            id="OpenAI",
        ),
        pytest.param(
            {"prompt_tokens": 13, "completion_tokens": 5, "prompt_tokens_details": None},
            Usage(input_tokens=13, output_tokens=5),
            id="nothing known of the cache",
        ),
        pytest.param(
            {"prompt_tokens": 13, "cached_tokens": 4},
            Usage(input_tokens=13, cached_tokens=4),
            id="Kimi",
        ),
        pytest.param(
            {"prompt_tokens": 13.0, "completion_tokens": 4.6},
            Usage(input_tokens=13, output_tokens=5),
            id="floats",
        ),
        pytest.param(
            {"prompt_tokens": 10**30, "completion_tokens": float("inf")}, Usage(), id="too large"
        ),
        pytest.param({"prompt_tokens": "13", "completion_tokens": True}, Usage(), id="no numbers"),
    ],
)
def test_usage_is_read_under_every_name(raw: dict[str, Any], usage: Usage) -> None:
    assert parse_usage(raw) == usage


def test_the_last_usage_counts_wherever_it_comes() -> None:
    reader, _ = read(
        chunk({"content": "a"}, usage={"prompt_tokens": 1}),
        chunk({}, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 2}},
        {"choices": [], "usage": None},
    )

    assert reader.finish().completion.usage.input_tokens == 2


def test_a_later_zero_does_not_take_a_figure_s_place() -> None:
    reader, events = read(
        chunk({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 1}),
        chunk({}, "stop", usage={"prompt_tokens": 0, "completion_tokens": 5}),
        {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
    )

    known = Usage(input_tokens=9, output_tokens=5)
    assert reader.finish().completion.usage == known
    assert events[-1] == UsageReported(known)


WHOLE = {"role": "assistant", "content": "Hello", "reasoning_content": "so"}


@pytest.mark.parametrize("delta", [{}, {"content": ""}, None, {"content": "!"}])
def test_a_whole_message_at_the_end_is_not_said_twice(delta: dict[str, Any] | None) -> None:
    tail = (delta or {}).get("content", "")
    whole = {**WHOLE, "content": f"Hello{tail}"}
    last = {"choices": [{"delta": delta, "message": whole, "finish_reason": "stop"}]}

    reader, _ = read(chunk({"reasoning_content": "so"}), chunk({"content": "Hello"}), last)

    message = reader.finish().completion.message
    assert (message.text, message.reasoning) == (whole["content"], "so")


def test_a_whole_message_says_what_its_fragments_left_out() -> None:
    whole = {**WHOLE, "tool_calls": [call(0, "c1", "f", "{}"), call(0, "c2", "f", "{}")]}
    last = {"choices": [{"delta": {}, "message": whole, "finish_reason": "tool_calls"}]}

    reader, _ = read(chunk({"content": "Hel"}), last)

    message = reader.finish().completion.message
    assert (message.text, message.reasoning) == ("Hello", "so")
    assert [one.id for one in message.tool_calls] == ["c1", "c2"]


def test_calls_of_a_whole_message_are_those_of_its_fragments() -> None:
    last = {"choices": [{"message": calls(call(0, "c1", "f", '{"a":1}')), "finish_reason": "stop"}]}

    reader, _ = read(
        chunk(calls(call(0, "c1", "f", ""))), chunk(calls(call(0, args='{"a":1}'))), last
    )

    assert called(reader) == [("f", '{"a":1}')]


def test_fragments_may_be_called_messages() -> None:
    reader, _ = read(*({"choices": [{"message": {"content": text}}]} for text in ("ha", "ha")))

    assert reader.finish().completion.message.text == "haha"


def test_json_that_is_nested_too_deeply_is_an_error() -> None:
    with pytest.raises(BackendError) as caught:
        ChunkReader("openai").read(b'{"a":' * 100_000)

    assert caught.value.kind is ErrorKind.PROTOCOL


def test_usage_may_lie_in_the_choice() -> None:
    reader, _ = read({"choices": [{"delta": {"content": "a"}, "usage": {"prompt_tokens": 3}}]})

    assert reader.finish().completion.usage.input_tokens == 3


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ({"message": "no", "code": "context_length_exceeded"}, ErrorKind.CONTEXT_OVERFLOW),
        ("STREAM_EXPLODED", ErrorKind.OVERLOADED),
    ],
)
def test_an_error_in_a_chunk_is_raised(said: object, kind: ErrorKind) -> None:
    with pytest.raises(BackendError) as caught:
        read(chunk({"content": "a"}), {"error": said})

    assert caught.value.kind is kind
    assert caught.value.request_id == "r1"


def test_lone_surrogates_and_bad_bytes_do_no_harm() -> None:
    reader = ChunkReader("openai")

    events = reader.read(b'{"choices": [{"delta": {"content": "a\\ud83d b \\ud83d\\ude00"}}]}')
    events += reader.read(b'{"choices": [{"delta": {"content": "\xff"}}]}')

    assert events == [TextDelta("a\ufffd b 😀"), TextDelta("\ufffd")]
    assert reader.finish().completion.message.text == "a\ufffd b 😀\ufffd"


@pytest.mark.parametrize("data", [b"{", b"[]", b"3", b"<html>"])
def test_a_chunk_that_is_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(BackendError) as caught:
        ChunkReader("openai").read(data)

    assert caught.value.kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("ds-keepalive", "ok", FinishReason.STOP),
        ("ds-usage-on-finish", "hi", FinishReason.STOP),
        ("stream-error-null", "a", FinishReason.STOP),
        ("llamacpp-bare-colon", "a", FinishReason.STOP),
        ("zp-role-each-delta", "4", FinishReason.STOP),
        ("zp-sensitive", "text", FinishReason.CONTENT_FILTER),
    ],
)
def test_recorded_streams_are_read(name: str, text: str, reason: FinishReason) -> None:
    reader, _ = replayed(name)

    completion = reader.finish().completion

    assert reader.finished
    assert reader.done
    assert (completion.message.text, completion.finish_reason) == (text, reason)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tool-index-missing", [("f", '{"a":1}')]),
        ("relay-no-id-continuation", [("read", "{}")]),
    ],
)
def test_recorded_tool_calls_are_read(name: str, expected: list[tuple[str, str]]) -> None:
    reader, _ = replayed(name)

    assert called(reader) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("oa-overflow-in-stream", ErrorKind.CONTEXT_OVERFLOW),
        ("stream-error-object", ErrorKind.OVERLOADED),
    ],
)
def test_recorded_errors_in_streams_are_raised(name: str, kind: ErrorKind) -> None:
    with pytest.raises(BackendError) as caught:
        replayed(name)

    assert caught.value.kind is kind


def test_the_usage_of_a_finish_chunk_is_kept() -> None:
    reader, _ = replayed("ds-usage-on-finish")

    assert reader.finish().completion.usage == Usage(
        input_tokens=339, output_tokens=83, cached_tokens=320, reasoning_tokens=39
    )


def response(message: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    return {
        "id": "x1",
        "model": "m-1",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }


def test_a_whole_answer_is_a_completion() -> None:
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "so"}

    completion = parse_completion(response(message), vendor="zhipu")

    assert completion.message.text == "Hi"
    assert completion.message.reasoning == "so"
    assert completion.usage == Usage(input_tokens=1, output_tokens=2)
    assert completion.request_id == "x1"


def test_a_whole_answer_may_be_tool_calls() -> None:
    answer = payload("zp-nested-args-string")

    completion = parse_completion(answer, vendor="zhipu")

    assert completion.finish_reason is FinishReason.TOOL_CALLS
    assert json.loads(completion.message.tool_calls[0].arguments) == {"filter": '{"k":1}'}


def test_every_choice_is_a_message() -> None:
    answer = response({"content": "a"})
    answer["choices"] += [{"index": 1, "message": {"content": "b"}}, {"index": 2, "message": {}}]

    messages = parse_messages(answer, vendor="openai")

    assert [message.text for message in messages] == ["a", "b"]


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"object": "list"}])
def test_an_answer_without_choices_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(BackendError) as caught:
        parse_completion(answer, vendor="openai")

    assert caught.value.kind is ErrorKind.PROTOCOL


def test_one_chunk_is_read_on_its_own() -> None:
    fragments = calls(call(2, "c1", "f", "{"), call(5, args="}"))

    events = parse_chunk(chunk({"content": "a", **fragments}))

    assert events[0] == TextDelta("a")
    assert events[1] == ToolCallDelta(2, "c1", "f", "{")
    assert isinstance(events[2], ToolCallDelta)
    assert (events[2].index, events[2].id, events[2].arguments) == (5, None, "}")
