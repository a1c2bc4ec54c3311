"""The body of an answer while it arrives, within bounds of size and time."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from typing import cast

import httpx

from agent_context.wire.sse import ResponseTooLong, SseDecoder

__all__ = [
    "LONGEST_ERROR",
    "LONGEST_JSON",
    "LONGEST_STREAM",
    "BodyDecoder",
    "bytes_of",
    "drain",
    "read_body",
    "read_start",
]

LONGEST_JSON = 64 * 1024 * 1024
"""Bytes of an answer that is one JSON object."""
LONGEST_STREAM = 512 * 1024 * 1024
"""Bytes of an answer that is streamed; the longest ones of today's models have a fifth of that."""
LONGEST_ERROR = 256 * 1024
"""Bytes of an error's body that are read; the rest says nothing more."""

_LINGER = 0.05
"""Seconds that the end of a stream may take after its last event."""
_PATIENCE = 10.0
"""Seconds for an error's body."""
_PIECE = 64 * 1024
"""Bytes that are decompressed at a time."""
_BOM = b"\xef\xbb\xbf"


class BodyDecoder:
    """Finds the payloads of an answer, which is a stream of events or JSON.

    What it is its first character says; content types are often wrong.
    """

    def __init__(self) -> None:
        self._start = b""
        self._decoder: SseDecoder | _JsonBody | None = None

    @property
    def whole(self) -> bool:
        """Whether it was one JSON value, which needs no other end."""
        return isinstance(self._decoder, _JsonBody) and self._decoder.values == 1

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete with `data`. Raises `ResponseTooLong`."""
        if self._decoder is None:
            self._start = (self._start + data).lstrip()
            if _BOM.startswith(self._start):  # or there is nothing yet
                return []
            is_json = self._start.removeprefix(_BOM).lstrip().startswith((b"{", b"["))
            self._decoder = _JsonBody() if is_json else SseDecoder()
            data, self._start = self._start, b""
        return self._decoder.feed(data)

    def close(self) -> list[bytes]:
        """The payloads that the end of the body completes."""
        return [] if self._decoder is None else self._decoder.close()


class _JsonBody:
    """In the place of an SSE decoder, for servers that answer a stream with JSON."""

    def __init__(self) -> None:
        self.values = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > LONGEST_JSON:
            raise ResponseTooLong(f"its answer has more than {LONGEST_JSON} bytes")
        return []

    def close(self) -> list[bytes]:
        return list(self._payloads(b"".join(self._pieces).removeprefix(_BOM).strip()))

    def _payloads(self, body: bytes) -> Iterator[bytes]:
        """Each JSON value, and the events that may stand behind."""
        rest = body.decode("utf-8", "surrogateescape")
        while rest.startswith(("{", "[")) and not rest.startswith("[DONE]"):
            try:
                end = json.JSONDecoder(strict=False).raw_decode(rest)[1]
            except (ValueError, RecursionError):
                end = len(rest)
            self.values += 1
            yield rest[:end].encode("utf-8", "surrogateescape")
            rest = rest[end:].strip()
        if rest.startswith("[DONE]"):
            rest = f"data: {rest}"
        decoder = SseDecoder()
        yield from decoder.feed(rest.encode("utf-8", "surrogateescape"))
        yield from decoder.close()


async def bytes_of(
    response: httpx.Response, silence: float, *, limit: int = LONGEST_STREAM
) -> AsyncGenerator[bytes]:
    """The body as it comes, decompressed if the server compressed it all the same.

    Raises `httpx.ReadTimeout` after `silence` seconds without any byte, whatever the parser below
    makes of them, and `ResponseTooLong` at more than `limit` bytes.
    """
    decompress = _decompressor(response)
    size = 0
    chunks = aiter(cast("httpx.AsyncByteStream", response.stream))
    try:
        while True:
            try:
                async with asyncio.timeout(silence):
                    data = await anext(chunks)
            except StopAsyncIteration:
                return
            except TimeoutError as error:
                raise httpx.ReadTimeout("silence") from error
            for piece in (data,) if decompress is None else decompress.pieces(data):
                size += len(piece)
                if size > limit:
                    raise ResponseTooLong(f"its answer has more than {limit} bytes")
                yield piece
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


async def read_body(response: httpx.Response, silence: float) -> bytes:
    """The whole body. Raises as `bytes_of`."""
    async with aclosing(bytes_of(response, silence, limit=LONGEST_JSON)) as chunks:
        return b"".join([data async for data in chunks])


async def read_start(response: httpx.Response, silence: float) -> bytes:
    """The beginning of an error's body, as far as it comes in time: the status says enough."""
    body = bytearray()
    with suppress(httpx.HTTPError, ResponseTooLong, TimeoutError):
        async with (
            asyncio.timeout(_PATIENCE),
            aclosing(bytes_of(response, silence, limit=LONGEST_ERROR)) as chunks,
        ):
            async for data in chunks:
                body += data
    return bytes(body)


class _Decompressor:
    """Gzip or zlib in pieces that are never large, however far they expand."""

    def __init__(self, window_bits: int) -> None:
        self._zlib = zlib.decompressobj(window_bits)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            while data:
                yield self._zlib.decompress(data, _PIECE)
                data = self._zlib.unconsumed_tail
        except zlib.error as error:
            raise httpx.DecodingError(f"its answer can't be decompressed: {error}") from error


_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def _decompressor(response: httpx.Response) -> _Decompressor | None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in {"", "identity"}:
        return None
    if encoding not in _WINDOW_BITS:
        text = f"its answer is encoded as {encoding!r}, though it was asked not to compress it"
        raise httpx.DecodingError(text)
    return _Decompressor(_WINDOW_BITS[encoding])


async def drain(chunks: AsyncGenerator[bytes]) -> None:
    """Read on to the end, which is due at once, so that the connection can be used again."""
    with suppress(TimeoutError, httpx.HTTPError, ResponseTooLong):
        async with asyncio.timeout(_LINGER):
            async for _ in chunks:
                pass
