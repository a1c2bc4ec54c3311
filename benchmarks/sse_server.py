"""A chat-completions server for measurements: it streams made-up answers at a steady pace.

    python -m benchmarks.sse_server --events 40 --period 0.05

It prints its port and serves until its stdin ends. A raw protocol that writes prepared bytes from
a timer, so that as little as possible of what is measured is the server's own time.
"""

import argparse
import asyncio
import importlib
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import cast

import orjson

__all__ = ["serving"]

_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Content-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n"
    b"Connection: keep-alive\r\n\r\n"
)
_USAGE = {"prompt_tokens": 10, "completion_tokens": 40, "total_tokens": 50}


@dataclass(frozen=True, slots=True)
class Answer:
    """What every request gets: the head at once, then one piece each period."""

    pieces: list[bytes]
    period: float

    @staticmethod
    def of(events: int, period: float) -> "Answer":
        """`events` pieces with a few words each; the last one also ends the answer."""
        said = [_chunked(_event({"content": f" word{i:03}"})) for i in range(events)]
        end = _event({}, finish_reason="stop", usage=_USAGE) + b"data: [DONE]\n\n"
        said[-1] += _chunked(end) + b"0\r\n\r\n"
        return Answer(said, period)


class Connection(asyncio.Protocol):
    """One client. Requests come one after the other, as they do from a client's pool."""

    def __init__(self, answer: Answer, loop: asyncio.AbstractEventLoop) -> None:
        self._answer = answer
        self._loop = loop
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if _is_whole(self._received) and self._transport is not None:
            self._received = b""
            self._transport.write(_HEAD)
            self._wait(0, self._loop.time() + self._answer.period)

    def _wait(self, index: int, due: float) -> None:
        self._timer = self._loop.call_at(due, self._say, index, due)

    def _say(self, index: int, due: float) -> None:
        if self._transport is not None:
            self._transport.write(self._answer.pieces[index])
        if index + 1 < len(self._answer.pieces):
            self._wait(index + 1, due + self._answer.period)


@contextmanager
def serving(*, events: int, period: float) -> Generator[str]:
    """The base URL of a server in a process of its own."""
    arguments = ["--events", str(events), "--period", str(period)]
    command = [sys.executable, "-m", "benchmarks.sse_server", *arguments]
    with Popen(command, stdin=PIPE, stdout=PIPE) as server:  # noqa: S603 - our own interpreter
        assert server.stdin is not None
        assert server.stdout is not None
        port = int(server.stdout.readline())
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.stdin.close()


def _is_whole(request: bytes) -> bool:
    head, found, body = request.partition(b"\r\n\r\n")
    length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
    return bool(found) and len(body) >= int(length or b"0")


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(delta: dict[str, str], **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}
    chunk = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": "deepseek-flash",
        "choices": [choice],
        **more,
    }
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


async def _serve(answer: Answer) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(answer, loop), "127.0.0.1", 0, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await loop.run_in_executor(None, sys.stdin.read)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--period", type=float, default=0.05, help="seconds")
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_serve(Answer.of(chosen.events, chosen.period)))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        return cast("asyncio.AbstractEventLoop", importlib.import_module("uvloop").new_event_loop())
    except ImportError:
        return asyncio.new_event_loop()


if __name__ == "__main__":
    _main()
