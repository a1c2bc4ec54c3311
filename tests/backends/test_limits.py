"""What a server may send is bounded in size and in time, whatever it does."""

import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from itertools import repeat

import anyio
import httpx
import pytest

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.stream_events import TextDelta
from agent_context.testing import request_of
from agent_context_backends import _body_stream
from agent_context_backends.chat_completions import ChatCompletionsBackend
from tests.support.mock import OK
from tests.support.sse_server import STALL, Reply, SseServer, sse

pytestmark = pytest.mark.anyio

MB = 1024 * 1024
SAID = {"model": "m", "choices": [{"delta": {"content": "a"}, "finish_reason": None}]}


class Endless(httpx.AsyncByteStream):
    """Sends its pieces for as long as somebody reads them."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.sent = 0
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.sent += len(piece)
            yield piece


def serving(
    body: httpx.AsyncByteStream, *, status: int = 200, headers: dict[str, str] | None = None
) -> ChatCompletionsBackend:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers=headers, stream=body)

    return ChatCompletionsBackend(base_url="http://x", transport=httpx.MockTransport(answer))


async def failure_of(backend: ChatCompletionsBackend, *, stream: bool) -> BackendError:
    request = request_of(backend, Message.user("q"), options=SendOptions(model="m"))
    try:
        if stream:
            async for _ in backend.send_stream(request):
                pass
        else:
            await backend.send(request)
    except BackendError as error:
        return error
    raise AssertionError("nothing went wrong")


@pytest.mark.parametrize("start", [b"data: ", b": ", b"{", b"x", b'data: {"a": "'])
@pytest.mark.parametrize("stream", [True, False])
async def test_an_endless_line_is_given_up(
    start: bytes, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_body_stream, "LONGEST_JSON", 20 * MB)
    body = Endless(piece for each in ([start], repeat(b"x" * MB)) for piece in each)

    error = await failure_of(serving(body), stream=stream)

    assert (error.kind, error.retryable) == (ErrorKind.PROTOCOL, False)
    assert "bytes" in str(error)
    assert body.sent <= 70 * MB


async def test_an_endless_event_in_many_lines_is_given_up() -> None:
    body = Endless(repeat(b"data: " + b"x" * MB + b"\n"))

    error = await failure_of(serving(body), stream=True)

    assert error.kind is ErrorKind.PROTOCOL
    assert body.sent <= 20 * MB


async def test_an_endless_stream_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_body_stream.bytes_of, "__kwdefaults__", {"limit": MB})
    body = Endless(repeat(sse(SAID, done=False)[0] * 100))

    assert (await failure_of(serving(body), stream=True)).kind is ErrorKind.PROTOCOL


@pytest.mark.parametrize("stream", [True, False])
async def test_of_an_endless_error_the_status_counts(stream: bool) -> None:
    body = Endless(repeat(b"x" * MB))

    error = await failure_of(serving(body, status=429), stream=stream)

    assert (error.kind, error.status) == (ErrorKind.RATE_LIMITED, 429)
    assert body.sent <= 2 * MB


def bomb(megabytes: int, *, status_line: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    zeros = b"x" * MB
    packed = [packer.compress(status_line), *(packer.compress(zeros) for _ in range(megabytes))]
    return b"".join([*packed, packer.flush()])


@pytest.mark.parametrize("start", [b'{"a": "', b'data: {"a": "'])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_expands_without_end_is_given_up(
    start: bytes, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_body_stream, "LONGEST_JSON", 16 * MB)
    body = Endless(iter([bomb(100, status_line=start)]))
    backend = serving(body, headers={"content-encoding": "gzip"})

    tracemalloc.start()
    error = await failure_of(backend, stream=stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert error.kind is ErrorKind.PROTOCOL
    assert peak < 60 * MB


async def test_an_encoding_that_nobody_asked_for_is_an_error() -> None:
    backend = serving(Endless(iter([b"?"])), headers={"content-encoding": "br"})

    error = await failure_of(backend, stream=True)

    assert error.kind is ErrorKind.TRANSPORT
    assert "'br'" in str(error)


@pytest.mark.parametrize("broken", [b"zz\r\nxx", b"5;" + b"y" * 100, b"-1\r\n"])
async def test_a_broken_chunk_header_does_not_hang(broken: bytes) -> None:
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    reply = Reply([broken, STALL], headers=headers, chunked=False)

    async with SseServer([reply]) as server:
        backend = ChatCompletionsBackend(base_url=f"{server.url}?key=secret", idle_timeout=0.2)
        error = await failure_of(backend, stream=True)
        await backend.aclose()

    assert (error.kind, error.retryable) == (ErrorKind.TRANSPORT, True)
    assert "secret" not in str(error)


async def test_an_error_whose_body_never_ends_is_told_by_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_body_stream, "_PATIENCE", 0.1)

    async with SseServer([Reply([b'{"error"', STALL], status=429)]) as server:
        backend = ChatCompletionsBackend(base_url=server.url)
        error = await failure_of(backend, stream=True)
        await backend.aclose()

    assert error.status == 429


async def test_an_idle_timeout_holds_for_any_transport() -> None:
    class Silent(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield sse(SAID, done=False)[0]
            await anyio.sleep_forever()

    backend = ChatCompletionsBackend(
        base_url="http://x",
        transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Silent())),
        idle_timeout=0.1,
    )
    request = request_of(backend, Message.user("q"), options=SendOptions(model="m"))
    events = backend.send_stream(request)

    assert await anext(events) == TextDelta("a")
    with pytest.raises(BackendError, match=r"nothing came for 0\.1 seconds"):
        await anext(events)


BOM = b"\xef\xbb\xbf"
WHOLE = httpx.Response(200, json=OK).content
EVENTS = b"".join(sse(SAID, {"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]}))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain", ""])
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (WHOLE, "ok"),
        (BOM + WHOLE, "ok"),
        (b"\n\n" + WHOLE + b"\n\ndata: [DONE]\n\n", "ok"),
        (WHOLE + b"[DONE]", "ok"),
        (EVENTS, "ab"),
        (BOM + EVENTS, "ab"),
        (b": hi\n\n" + EVENTS.replace(b"data: [", b"data:  ["), "ab"),
        (EVENTS.replace(b"\n\n", b"\n"), "ab"),
        (EVENTS.replace(b"data: {", b"event: message\ndata: {").replace(b"\n\n", b"\n"), "ab"),
        (EVENTS.replace(b"data: ", b"").replace(b"\n\n", b"\n"), "ab"),
    ],
    ids=range(10),
)
async def test_what_a_body_is_its_first_character_says(
    body: bytes, text: str, kind: str, stream: bool
) -> None:
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    backend = serving(Endless(iter(pieces)), headers={"content-type": kind})
    request = request_of(backend, Message.user("q"), options=SendOptions(model="m"))

    if stream:
        *_, end = [event async for event in backend.send_stream(request)]
        completion = getattr(end, "completion", None)
    else:
        completion = await backend.send(request)

    assert completion is not None
    assert completion.message.text == text


async def test_half_of_an_answer_in_json_lines_is_none() -> None:
    lines = EVENTS.split(b"\n\n", 1)[0].removeprefix(b"data: ")

    error = await failure_of(serving(Endless(iter([lines]))), stream=True)

    assert error.kind is ErrorKind.TRANSPORT
