"""Every fixture is about something that is handled; and a stream may be split anywhere."""

import json
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.stream_events import StreamEvent, UsageReported
from agent_context.wire.chat import ChunkReader, parse_completion
from agent_context.wire.sse import SseDecoder
from tests.wire.fixtures import FIXTURES, payload

STREAMS = [name for name, fixture in FIXTURES.items() if fixture["kind"] == "stream"]


def replayed(pieces: list[bytes]) -> list[Any]:
    """The events, and then the answer or what went wrong; ids that are made up left out."""
    decoder, reader = SseDecoder(), ChunkReader("any")
    found: list[StreamEvent | tuple[object, ...]] = []
    try:
        for piece in pieces:
            for data in decoder.feed(piece):
                found += reader.read(data)
        for data in decoder.close():
            found += reader.read(data)
        completion = reader.finish().completion
    except BackendError as error:
        return [*found, (error.kind, error.code, error.retryable)]
    message = completion.message
    return [*found, message.text, message.tool_calls, completion.usage, reader.done]


def cuts_of(whole: bytes) -> Iterator[list[bytes]]:
    for size in (1, 2, 3, 7):
        yield [whole[i : i + size] for i in range(0, len(whole), size)]
    for at in range(len(whole)):
        yield [whole[:at], whole[at:]]
    dice = random.Random(4)
    for _ in range(100):
        ends = [0, *sorted(dice.sample(range(len(whole)), 5)), len(whole)]
        yield [whole[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("crlf", [False, True], ids=["LF", "CRLF"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_says_the_same_wherever_it_is_split(name: str, crlf: bool) -> None:
    whole = "".join(line for line in payload(name) if not line.startswith("<")).encode()
    expected = replayed([whole])
    if crlf:
        whole = whole.replace(b"\n", b"\r\n")

    assert all(replayed(pieces) == expected for pieces in cuts_of(whole))


@pytest.mark.parametrize(
    ("name", "kind", "retryable"),
    [
        ("zp-finish-context", ErrorKind.CONTEXT_OVERFLOW, False),
        ("ds-insufficient-resource", ErrorKind.OVERLOADED, True),
    ],
)
def test_an_answer_that_its_server_gave_up_is_none(
    name: str, kind: ErrorKind, retryable: bool
) -> None:
    *events, end = replayed([line.encode() for line in payload(name)])

    assert [event.text for event in events if not isinstance(event, UsageReported)][:1] == ["par"]
    assert end == (kind, json.loads(payload(name)[1][6:])["choices"][0]["finish_reason"], retryable)


LEAKS = [
    payload("ds-dsml-leak")["choices"][0]["message"]["content"],
    "Let me see.\n<｜DSML｜ calls>",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f",
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "<tool_call>get_weather\n<arg_key>city</arg_key>",
    "<tool_call>\n<function=f>\n",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0",
    '[TOOL_CALLS][{"name": "f"}]',
    "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
]


@pytest.mark.parametrize("text", LEAKS)
def test_a_call_that_leaked_into_the_text_is_flagged(text: str) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}

    completion = parse_completion({"choices": [{**choice, "finish_reason": "stop"}]}, vendor="any")

    assert completion.leaked_markup
    assert completion.message.leaked_markup
    assert completion.message.text == text


@pytest.mark.parametrize("text", ["a <tool_call> tag", "DSML", "see [TOOL_CALLS]", "<b>x</b>", ""])
def test_talk_about_markup_is_no_leak(text: str) -> None:
    message = {"role": "assistant", "content": text, "reasoning_content": "so"}

    completion = parse_completion({"choices": [{"index": 0, "message": message}]}, vendor="any")

    assert not completion.leaked_markup
