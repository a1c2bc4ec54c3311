"""Server-sent events, written by hand: each frame is bytes once, one timer pings all streams."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Final

import orjson
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

__all__ = ["PING", "Bell", "EventStream", "data_frame", "event_frame"]

PING: Final = b": ping\n\n"


def data_frame(value: object) -> bytes:
    """A frame without a name."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def event_frame(name: str, value: object, *, id: str | int | None = None) -> bytes:
    """A frame with a name, and what a client that comes back says it has seen."""
    head = b"" if id is None else b"id: " + str(id).encode() + b"\n"
    return head + b"event: " + name.encode() + b"\ndata: " + orjson.dumps(value) + b"\n\n"


class EventStream(StreamingResponse):
    """A response that sends frames as they come."""

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        """`on_close` is called once nothing more is sent, for whatever reason."""
        no_buffer = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(frames, headers={**no_buffer, **(headers or {})})
        self._on_close = on_close
        self._end = frames.aclose if isinstance(frames, AsyncGenerator) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._on_close is not None:
                self._on_close()
            if self._end is not None:
                await self._end()


class Bell:
    """Wakes whoever waits on a stream: when there is more, when it is time for a ping, at the end.

    Those who wait wait for a future each, so that silence costs nothing: one timer looks at all.
    """

    def __init__(self, pause: float) -> None:
        """`pause` is in seconds between pings."""
        self._pause = pause
        self._waiting: weakref.WeakSet[asyncio.Future[bool]] = weakref.WeakSet()
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        """Whether all streams must end: the service stops."""

    async def wait(self, more: asyncio.Future[bool]) -> bool:
        """Wait until `more` is set; False if it is only time for a ping, or to look at `closed`."""
        if self.closed:
            return False
        self._waiting.add(more)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause, self._ring)
        return await more

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake_all()

    def _ring(self) -> None:
        self._timer = None
        self._wake_all()

    def _wake_all(self) -> None:
        waiting, self._waiting = list(self._waiting), weakref.WeakSet()
        for each in waiting:
            if not each.done():
                each.set_result(False)
