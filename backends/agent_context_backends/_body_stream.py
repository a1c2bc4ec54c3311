"""The body of an answer while it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import cast

import httpx

from agent_context.wire.sse import SseDecoder

__all__ = ["WholeBody", "bytes_of", "decoder_of", "drain"]

_LINGER = 0.05
"""Seconds that the end of a stream may take after its last event."""


class WholeBody:
    """In the place of an SSE decoder, for servers that answer a stream with one JSON object."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        return []

    def close(self) -> list[bytes]:
        return [b"".join(self._pieces)]


def decoder_of(response: httpx.Response) -> SseDecoder | WholeBody:
    kind = response.headers.get("content-type", "")
    return WholeBody() if kind.startswith("application/json") else SseDecoder()


def bytes_of(response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body as it comes. Both of httpx's iterators are generators, and must be closed."""
    encoded = "content-encoding" in response.headers
    chunks = (
        response.aiter_bytes() if encoded else aiter(cast("httpx.AsyncByteStream", response.stream))
    )
    return cast("AsyncGenerator[bytes]", chunks)


async def drain(chunks: AsyncGenerator[bytes]) -> None:
    """Read on to the end, which is due at once, so that the connection can be used again."""
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_LINGER):
            async for _ in chunks:
                pass
