"""A line that is read straight into a stored message is the message that `Message` makes of it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context._context.chat_line import decode_fields, decode_line
from agent_context._context.stored_message import from_message
from agent_context.errors import InvalidMessage
from agent_context.messages import Message

texts = st.sampled_from(["", " ", "hi", "a\u2028b\x7f\x00\t", "über 🎉", 'q"\\'])
odd = st.sampled_from([None, 0, 1, 2.5, True, [], {}, ["a"], {"a": 1}, "x"])
parts = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "text", "text": ""},
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text"},
        {"type": "image_url", "image_url": {"url": "u", "detail": None, "width": 3}},
        {"type": "image_url", "image_url": {"url": "u", "more": 1}},
        {"type": "image_url", "image_url": "u"},
        {"type": "file", "file": {"id": "f"}},
        "bare",
        7,
    ]
)
calls = st.sampled_from(
    [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "d", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "f", "arguments": ""}},
        {"id": "e", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}},
        {"id": "e", "type": "custom", "function": {"name": "f", "arguments": "{}"}},
        {"id": "g", "name": "f", "arguments": "{}"},
        {"id": "h", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "i", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"s": 1}},
    ]
)
fields = st.fixed_dictionaries(
    {"id": st.sampled_from(["m", "n"])},
    optional={
        "role": st.sampled_from(
            ["user", "assistant", "assistant", "system", "tool", "tool", "developer", "robot"]
        ),
        "content": texts | st.none() | st.lists(parts, max_size=2) | odd,
        "reasoning": texts | odd,
        "reasoning_content": texts | odd,
        "tool_calls": st.none() | st.lists(calls, max_size=2) | odd,
        "tool_call_id": texts | odd,
        "name": texts | odd,
        "interim": odd,
        "interrupted": odd,
        "leaked_markup": odd,
        "finish_reason": st.sampled_from(["stop", "length", "odd"]) | odd,
        "origin": st.sampled_from([{"vendor": "v"}, {"vendor": "v", "model": "m", "more": 1}])
        | odd,
        "parts": st.just([]) | odd,
        "timestamp": odd,
        "text": texts | odd,
        "protected": odd,
    },
)


@given(fields)
def test_the_short_way_stores_what_the_long_one_does(found: dict[str, Any]) -> None:
    line = json.dumps(found)

    for read in (decode_line(line), decode_line(line.encode()), decode_fields(found)):
        if read is not None:
            long = from_message(Message.model_validate(found))
            zone, short = read
            assert zone is None
            assert (short.id, short.role, short.call_ids) == (long.id, long.role, long.call_ids)
            assert short.body == long.body


@given(fields)
def test_what_is_no_message_is_left_to_the_long_way(found: dict[str, Any]) -> None:
    try:
        Message.model_validate(found)
    except InvalidMessage:
        assert decode_line(json.dumps(found)) is None
        assert decode_fields(found) is None


@pytest.mark.parametrize(
    "found",
    [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]},
        {"role": "assistant", "content": "hi", "created_at": 3, "meta": {"a": [1]}},
        {"role": "assistant", "content": "hi", "origin": {"vendor": "v"}, "finish_reason": "stop"},
        {"id": "m", "zone": "immutable", "role": "system", "content": "Be kind."},
    ],
)
def test_usual_lines_take_the_short_way(found: dict[str, Any]) -> None:
    assert decode_line(json.dumps(found)) is not None


@pytest.mark.parametrize(
    "line",
    ["", " ", "{", "[]", "7", '{"role": "user", "content": "\\ud83d"}', '{"agent_context": 1}'],
)
def test_what_is_no_line_is_left_to_the_long_way(line: str) -> None:
    assert decode_line(line) is None
