"""A thousand answers streamed at once, and how long a read takes meanwhile.

A local server writes 40 events to each stream, one every 50 ms: 20,000 a second, 2 s at best. The
library's streams are consumed with `async for` on one event loop. The peers read the same server on
that loop without conversations: httpx over the same aiohttp transport, decoding each event, and
aiohttp itself. A thread beside asks conversations for their length all the time: one that is idle,
and one that streams. Connections are opened anew in each run; all of it runs three times in turn.
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import aiohttp
import httpx
import orjson

from agent_context import (
    AgentContext,
    Append,
    ContextRef,
    EstimateTokens,
    Message,
    SendStream,
    TextDelta,
)
from agent_context.protocol import Len
from agent_context.wire.sse import SseDecoder
from agent_context_backends._transport import AiohttpTransport
from agent_context_backends.deepseek import DeepSeekBackend
from benchmarks.material import text
from benchmarks.report import Row, main, quantile, rate
from benchmarks.sse_server import serving

__all__ = ["rows"]

EVENTS: Final = 40
PERIOD: Final = 0.05
ROUNDS: Final = 3
PATH: Final = "/chat/completions"
HEADERS: Final = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
GOAL_SHARE: Final = 0.8
GOAL_READ: Final = 0.010


@dataclass(slots=True)
class Run:
    """What one run came to, in seconds."""

    wall: float
    cpu: float
    reads: dict[str, list[float]]


@dataclass(slots=True)
class Kind:
    """One way to read all streams: its runs so far."""

    runs: list[Run] = field(default_factory=list[Run])

    def wall(self) -> float:
        return statistics.median(run.wall for run in self.runs)

    def cpu(self) -> float:
        return statistics.median(run.cpu for run in self.runs)

    def reads(self, name: str) -> list[float]:
        return [taken for run in self.runs for taken in run.reads.get(name, ())]


class Reader(threading.Thread):
    """Asks conversations for their length, one after the other, and keeps how long it took."""

    def __init__(self, conversations: dict[str, ContextRef]) -> None:
        super().__init__(daemon=True)
        self.taken: dict[str, list[float]] = {name: [] for name in conversations}
        self._conversations = conversations
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.002):
            for name, context in self._conversations.items():
                start = time.perf_counter()
                context.ask(Len())
                self.taken[name].append(time.perf_counter() - start)

    def stop(self) -> None:
        self._over.set()
        self.join()


def rows(scale: float) -> Iterator[Row]:
    streams = max(10, round(1_000 * scale))
    kinds = {"aiohttp": Kind(), "alone": Kind(), "httpx": Kind(), "ours": Kind()}
    with serving(events=EVENTS, period=PERIOD) as url:
        idle = AgentContext.start(DeepSeekBackend(api_key="none", base_url=url))
        idle.ask(Append(Message.user(text())))
        idle.ask(EstimateTokens())  # the vocabulary is loaded once, and not while it is measured
        for _ in range(ROUNDS):
            kinds["aiohttp"].runs.append(_run(_with_aiohttp(url, streams), {}))
            kinds["alone"].runs.append(_run(_with_httpx(url, streams), {}))
            kinds["httpx"].runs.append(_run(_with_httpx(url, streams), {"idle": idle}))
            kinds["ours"].runs.append(_ours(url, streams, idle))
        idle.stop()
    yield from _told(streams, kinds)


def _told(streams: int, kinds: dict[str, Kind]) -> Iterator[Row]:
    events = streams * EVENTS
    ours, floor = kinds["ours"], kinds["httpx"]
    share = floor.wall() / ours.wall()
    yield Row(
        what=f"{streams:,} streams of {EVENTS} events at {PERIOD * 1000:.0f} ms, reads beside",
        figure=f"{ours.wall():.2f} s, {rate(events / ours.wall())}, {_cpu(ours, events)}",
        floor=f"bare httpx over aiohttp, reads beside: {floor.wall():.2f} s, {_cpu(floor, events)}",
        ratio=f"{share:.2f} of its rate",
        goal="≥ 0.8",
        met=share >= GOAL_SHARE,
    )
    for name, peer in (("bare httpx over aiohttp, no reads", "alone"), ("aiohttp", "aiohttp")):
        wall = kinds[peer].wall()
        yield Row(
            what=f"the same, beside {name}",
            figure=f"{ours.wall():.2f} s",
            floor=f"{wall:.2f} s, {_cpu(kinds[peer], events)}",
            ratio=f"{wall / ours.wall():.2f} of its rate",
        )
    bare = _latency(floor.reads("idle"))
    for name in ("idle", "streaming"):
        reads = ours.reads(name)
        yield Row(
            what=f"`ask(Len)` of a conversation that is {name}, meanwhile: p50 / p99 / max",
            figure=_latency(reads),
            floor=f"beside the bare loop: {bare}",
            goal="p99 ≤ 10 ms",
            met=quantile(reads, 0.99) <= GOAL_READ,
        )


def _cpu(kind: Kind, events: int) -> str:
    return f"{kind.cpu() / events * 1e6:.0f} µs CPU an event"


def _latency(reads: list[float]) -> str:
    p50, p99, most = (quantile(reads, share) * 1e3 for share in (0.5, 0.99, 1.0))
    return f"{p50:.1f} / {p99:.1f} / {most:.0f} ms"


def _run(reading: Coroutine[Any, Any, None], conversations: dict[str, ContextRef]) -> Run:
    """Run one way to read all streams, with reads of these conversations beside it."""
    reader = Reader(conversations)
    reader.start()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        start, cpu = time.perf_counter(), time.process_time()
        runner.run(reading)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    reader.stop()
    return Run(wall, cpu, reader.taken)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        return cast("asyncio.AbstractEventLoop", importlib.import_module("uvloop").new_event_loop())
    except ImportError:
        return asyncio.new_event_loop()


def _ours(url: str, streams: int, idle: ContextRef) -> Run:
    backend = DeepSeekBackend(api_key="none", base_url=url)
    contexts = [AgentContext.start(backend) for _ in range(streams)]
    for context in contexts:
        context.ask(Append(Message.user(text())))
    run = _run(_with_contexts(contexts), {"idle": idle, "streaming": contexts[streams // 2]})
    for context in contexts:
        context.stop()
    asyncio.run(backend.aclose())
    return run


async def _with_contexts(contexts: list[ContextRef]) -> None:
    _check(await asyncio.gather(*map(_one_of_ours, contexts)))


async def _one_of_ours(context: ContextRef) -> int:
    pieces = 0
    async for event in await context.aask(SendStream()):
        pieces += isinstance(event, TextDelta)
    return pieces


async def _with_httpx(url: str, streams: int) -> None:
    timeout = httpx.Timeout(60, pool=None)
    transport = AiohttpTransport()
    async with httpx.AsyncClient(transport=transport, trust_env=False, timeout=timeout) as client:
        _check(await asyncio.gather(*(_one_with_httpx(client, url) for _ in range(streams))))


async def _one_with_httpx(client: httpx.AsyncClient, url: str) -> int:
    pieces, decoder = 0, SseDecoder()
    request = client.stream("POST", url + PATH, content=_body(), headers=HEADERS)
    async with request as response:
        async for data in cast("httpx.AsyncByteStream", response.stream):
            pieces += sum(map(_is_text, decoder.feed(data)))
    return pieces


async def _with_aiohttp(url: str, streams: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        _check(await asyncio.gather(*(_one_with_aiohttp(session, url) for _ in range(streams))))


async def _one_with_aiohttp(session: aiohttp.ClientSession, url: str) -> int:
    pieces, decoder = 0, SseDecoder()
    async with session.post(url + PATH, data=_body(), headers=HEADERS) as response:
        while data := await response.content.readany():
            pieces += sum(map(_is_text, decoder.feed(data)))
    return pieces


def _body() -> bytes:
    messages = [{"role": "user", "content": text()}]
    return orjson.dumps({"model": "deepseek-flash", "stream": True, "messages": messages})


def _is_text(payload: bytes) -> bool:
    if payload == b"[DONE]":
        return False
    chunk: dict[str, Any] = orjson.loads(payload)
    return bool(chunk["choices"][0]["delta"].get("content"))


def _check(pieces: list[int]) -> None:
    """Whoever reads faster by reading less is not compared."""
    assert set(pieces) == {EVENTS}, f"{EVENTS} events were sent to each, not {set(pieces)}"


if __name__ == "__main__":
    main(__doc__, rows)
