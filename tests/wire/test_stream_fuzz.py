"""However a recorded stream is damaged, it is a typed error or what a tolerant reader finds in it:
never a call that nobody made, and never a success after an error."""

import itertools
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context.errors import BackendError
from agent_context.messages import Message
from agent_context.wire.chat import ChunkReader
from agent_context.wire.messages import MessagesReader
from agent_context.wire.responses import ResponsesReader
from agent_context.wire.sse import SseDecoder
from tests.support.examples import examples
from tests.wire.fixtures import FIXTURES, payload

Chunk = dict[str, Any]
Reader = ChunkReader | MessagesReader | ResponsesReader

DATA = Path(__file__).parents[1] / "data" / "responses_streams.jsonl"
RESPONSES: dict[str, list[Chunk]] = {
    case["id"]: case["events"] for case in map(json.loads, DATA.read_text("utf-8").splitlines())
}


def recorded(name: str) -> list[Chunk]:
    events = "".join(payload(name)).split("\n\n")
    found = [event.removeprefix("data: ") for event in events if event.startswith("data: {")]
    return [json.loads(one) for one in found]


def fragment(index: int, arguments: str, **opened: str) -> Chunk:
    name = {"name": opened["name"]} if opened else {}
    call = {"index": index, "function": {**name, "arguments": arguments}}
    call |= {"id": opened["id"], "type": "function"} if opened else {}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}


TWO_CALLS: list[Chunk] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "So: "}}]},
    {"choices": [{"index": 0, "delta": {"content": "I look"}}]},
    fragment(0, "", id="c1", name="look"),
    fragment(0, '{"at": '),
    fragment(0, '"a"}'),
    fragment(1, "", id="c2", name="write"),
    fragment(1, '{"to": "b", '),
    fragment(1, '"what": 1}'),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}},
]
CHAT = {"two-calls": TWO_CALLS} | {
    name: chunks
    for name, fixture in FIXTURES.items()
    if fixture["kind"] == "stream" and (chunks := recorded(name))
}


def _block(index: int, opened: Chunk, *deltas: Chunk) -> list[Chunk]:
    return [
        {"type": "content_block_start", "index": index, "content_block": opened},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _arguments(*parts: str) -> list[Chunk]:
    return [{"type": "input_json_delta", "partial_json": part} for part in parts]


BLOCKS: dict[str, list[Chunk]] = {
    "thought-and-calls": [
        {
            "type": "message_start",
            "message": {"id": "m", "model": "c", "usage": {"input_tokens": 9}},
        },
        {"type": "ping"},
        *_block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "So: "},
            {"type": "signature_delta", "signature": "c2ln"},
        ),
        *_block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look"}),
        *_block(
            2,
            {"type": "tool_use", "id": "c1", "name": "look", "input": {}},
            *_arguments("", '{"at": ', '"a"}'),
        ),
        *_block(
            3,
            {"type": "tool_use", "id": "c2", "name": "write", "input": {}},
            *_arguments('{"to": "b", ', '"what": 1}'),
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 5},
        },
        {"type": "message_stop"},
    ]
}


def in_bytes(chunks: list[Chunk]) -> bytes:
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return b"".join(events) + b"data: [DONE]\n\n"


def answer_of(reader: Reader, stream: bytes, cuts: list[int]) -> Message | BackendError:
    """The answer, or the typed error that it is. Anything else that is raised is a fault."""
    decoder = SseDecoder()
    ends = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    try:
        for start, end in itertools.pairwise(ends):
            for data in decoder.feed(stream[start:end]):
                reader.read(data)
        for data in decoder.close():
            reader.read(data)
        return reader.finish().completion.message
    except BackendError as error:
        return error


def said(answer: Message | BackendError) -> object:
    if isinstance(answer, BackendError):
        return answer.kind
    return answer.text, answer.reasoning, [(c.name, c.arguments) for c in answer.tool_calls]


JUNK: list[Any] = [None, "", 0, 1, -1, 1.5, True, [], {}, "x", [None], {"x": 1}, 10**30, ["x"]]


@st.composite
def damaged(draw: st.DrawFn, streams: dict[str, list[Chunk]]) -> tuple[list[Chunk], list[Chunk]]:
    """A stream, and what is left of it."""
    whole = streams[draw(st.sampled_from(sorted(streams)))]
    chunks = deepcopy(whole)
    at = draw(st.integers(0, len(chunks) - 1))
    match draw(st.sampled_from(["keep", "drop", "repeat", "swap"])):
        case "drop":
            del chunks[at]
        case "repeat":
            chunks.insert(at, deepcopy(chunks[at]))
        case "swap":
            chunks[at - 1], chunks[at] = chunks[at], chunks[at - 1]
        case _:
            pass
    for _ in range(draw(st.integers(0, 2))):
        if chunks:
            _retype(draw, draw(st.sampled_from(chunks)))
    return whole, chunks


def _retype(draw: st.DrawFn, chunk: Any) -> None:
    """Put something else in the place of one field, however deep."""
    while chunk:
        key = draw(st.sampled_from(sorted(chunk) if isinstance(chunk, dict) else range(len(chunk))))
        if isinstance(chunk[key], dict | list) and chunk[key] and draw(st.integers(0, 3)):
            chunk = chunk[key]
            continue
        chunk[key] = deepcopy(draw(st.sampled_from(JUNK)))
        return


def calls_in(reader: Callable[[str], Reader], chunks: list[Chunk]) -> set[tuple[str, bytes]]:
    """The calls of a stream that is as it was recorded."""
    answer = answer_of(reader("any"), in_bytes(chunks), [])
    if isinstance(answer, BackendError):
        return set()
    return {(call.name, _canonical(call.arguments)) for call in answer.tool_calls}


def _canonical(arguments: str) -> bytes:
    return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS)


def phantoms(answer: Message, real: set[tuple[str, bytes]]) -> list[tuple[str, str]]:
    """Calls that a tool would carry out, and that the model didn't make.

    What was put in the place of a name or of arguments counts as made.
    """
    names = {name for name, _ in real} | {"x"}
    values = {_canonical(json.dumps(value)) for value in JUNK}
    found = []
    for call in answer.tool_calls:
        try:
            made = _canonical(call.arguments)
        except orjson.JSONDecodeError:
            continue  # no tool takes it
        same = {value for name, value in real if call.name in (name, "x")}
        if call.name not in names or made not in same | values:
            found.append((call.name, call.arguments))
    return found


STREAMS = {"chat": CHAT, "messages": BLOCKS, "responses": RESPONSES}
READERS: dict[str, Callable[[str], Reader]] = {
    "chat": ChunkReader,
    "messages": MessagesReader,
    "responses": ResponsesReader,
}
EACH = pytest.mark.parametrize("api", sorted(STREAMS))


@EACH
@examples(20)
@given(st.data())
def test_a_damaged_stream_is_an_error_or_an_answer_without_phantoms(
    api: str, data: st.DataObject
) -> None:
    reader = READERS[api]
    whole, left = data.draw(damaged(STREAMS[api]))
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=5))

    answer = answer_of(reader("any"), in_bytes(left), cuts)

    assert isinstance(answer, BackendError) or phantoms(answer, calls_in(reader, whole)) == []
    assert said(answer) == said(answer_of(reader("any"), in_bytes(left), []))


NESTED: list[Callable[[Any], Chunk]] = [
    lambda error: {"error": error},
    lambda error: {"error": {"error": error}},
    lambda error: {"error": [error]},
    lambda error: {"object": "error", **error},
    lambda error: {"type": "error", **error},
    lambda error: {"type": "error", "error": error},
    lambda error: error,
]


@EACH
@examples(10)
@given(st.data())
def test_no_success_follows_an_error(api: str, data: st.DataObject) -> None:
    reader = READERS[api]
    _, left = data.draw(damaged(STREAMS[api]))
    error = {"message": "it broke", "code": data.draw(st.sampled_from([500, "1234", None]))}
    left.insert(0 if not left else data.draw(st.integers(0, len(left))), error)
    place = left.index(error)
    left[place] = data.draw(st.sampled_from(NESTED))(error)

    assert isinstance(answer_of(reader("any"), in_bytes(left), []), BackendError)


@examples(10)
@given(st.data())
def test_text_is_what_the_fragments_say_in_their_order(data: st.DataObject) -> None:
    chunks = data.draw(st.permutations(TWO_CALLS[:2] + TWO_CALLS[2:5]))
    cuts = data.draw(st.lists(st.integers(0, 10_000), max_size=5))

    answer = answer_of(ChunkReader("any"), in_bytes([*chunks, TWO_CALLS[8]]), cuts)

    assert isinstance(answer, Message)
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert answer.text == "".join(texts)
