"""A model server on asyncio that answers as told, and misbehaves as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

__all__ = [
    "CUT",
    "STALL",
    "Received",
    "Reply",
    "SseServer",
    "answer",
    "in_thread",
    "json_reply",
    "sse",
]


class _Mark:
    pass


CUT = _Mark()
"""Reset the connection in the middle of the answer."""
STALL = _Mark()
"""Say nothing more until the client goes away."""

Step = bytes | float | asyncio.Event | _Mark
"""Bytes go out as one chunk; a number is a pause in seconds; an event is waited for."""


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream"}
    )
    chunked: bool = True
    """Otherwise the end of the connection is the end of the body."""


def sse(*chunks: object, done: bool = True) -> list[bytes]:
    """Each chunk as an event of its own."""
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    return [*events, b"data: [DONE]\n\n"] if done else events


def answer(*texts: str, usage: Mapping[str, Any] | None = None) -> Reply:
    """A streamed answer in these pieces."""
    deltas: list[object] = [
        {"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]} for text in texts
    ]
    end = {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return Reply(sse(*deltas, {**end, "usage": usage} if usage else end))


def json_reply(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    return Reply(
        [json.dumps(value).encode()],
        status=status,
        headers={"content-type": "application/json", **(headers or {})},
    )


Script = Callable[[Received], Reply]


class SseServer:
    """Serves `script` on a port of its own."""

    def __init__(self, script: Script | Sequence[Reply]) -> None:
        self.requests: list[Received] = []
        self.connections = 0
        self.disconnected = asyncio.Event()
        """Set when a client goes away before its answer was complete."""
        self.idle = threading.Event()
        """Set while no connection is open."""
        self.url = ""
        self._script = script
        self._arrived = asyncio.Condition()
        self._handlers: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in tuple(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def received(self, count: int) -> None:
        """Wait until there have been so many requests."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        self.connections += 1
        self.idle.clear()
        try:
            while (received := await _read(reader)) is not None:
                self.requests.append(received)
                async with self._arrived:
                    self._arrived.notify_all()
                if not await self._reply(self._next(received), reader, writer):
                    break
        except ConnectionError:
            self.disconnected.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._handlers.discard(task)
            writer.close()
            if not self._handlers:
                self.idle.set()

    def _next(self, received: Received) -> Reply:
        if callable(self._script):
            return self._script(received)
        return self._script[min(len(self.requests), len(self._script)) - 1]

    async def _reply(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Whether the connection goes on."""
        writer.write(_head(reply))
        for step in reply.steps:
            if step is CUT:
                writer.transport.abort()
                return False
            if step is STALL:
                await reader.read(1)
                self.disconnected.set()
                return False
            await self._step(step, reply, writer)
        if reply.chunked:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return reply.chunked

    async def _step(self, step: Step, reply: Reply, writer: asyncio.StreamWriter) -> None:
        if isinstance(step, bytes):
            writer.write(b"%x\r\n%s\r\n" % (len(step), step) if reply.chunked else step)
            await writer.drain()
            await asyncio.sleep(0)
        elif isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, float):
            await asyncio.sleep(step)


def _head(reply: Reply) -> bytes:
    framing = "transfer-encoding: chunked" if reply.chunked else "connection: close"
    lines = [f"HTTP/1.1 {reply.status} Whatever", framing]
    lines += [f"{name}: {value}" for name, value in reply.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, body)


@contextlib.contextmanager
def in_thread(script: Script | Sequence[Reply]) -> Generator[SseServer]:
    """A server that runs in a thread of its own, for tests that aren't asynchronous."""
    ready = threading.Event()
    server: list[SseServer] = []
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with SseServer(script) as running:
            server.append(running)
            ready.set()
            await stop.wait()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    try:
        yield server[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
