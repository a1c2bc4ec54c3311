"""Durable appends as a user makes them, beside those of other libraries on a SQLite file.

Each conversation appends a message of 200 characters as soon as the last one is kept: ours and
openai-agents' `SQLiteSession` from tasks on one event loop, LangGraph's `SqliteSaver`, which keeps
the whole list with each message, from as many threads. What is not installed is left out:

    pip install openai-agents langgraph-checkpoint-sqlite
"""

from __future__ import annotations

import asyncio
import importlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from agent_context import Append, ContextRef, Host, Message
from agent_context.stores.sqlite import SqliteStore
from benchmarks.material import MuteBackend, text
from benchmarks.report import Row, main, rate

__all__ = ["rows"]

ROUNDS: Final = 3
GOAL: Final = 6_000

Appended = tuple[float, float]
"""Messages a second, and bytes of the file for each."""


def rows(scale: float) -> Iterator[Row]:
    for talks, appends in ((1, 2_000), (8, 8_000), (100, 20_000)):
        yield from compared(talks, max(talks, round(appends * scale)))


def compared(talks: int, appends: int) -> Iterator[Row]:
    each = appends // talks
    mine = measured(ours, talks, each)
    # They are slower: so much is enough to see it, and more takes minutes.
    peers = {
        name: measured(peer, talks, max(1, each // share))
        for name, peer, share in (("SQLiteSession", agents, 4), ("SqliteSaver", langgraph, 10))
        if peer is not None
    }
    several = f"{talks} conversation{'s' if talks > 1 else ''}"
    goal = talks == 100
    best = max((speed for speed, _ in peers.values()), default=None)
    yield Row(
        what=f"durable appends asked of {several} of a host",
        figure=rate(mine[0]),
        floor=", ".join(f"{name}: {rate(speed)}" for name, (speed, _) in peers.items()),
        ratio=f"{mine[0] / best:.1f}" if best else "",
        goal=f"≥ {rate(GOAL)}" if goal else "",
        met=mine[0] >= GOAL if goal else None,
    )
    yield Row(
        what=f"bytes on disk per message, {several} of {each:,}",
        figure=f"{mine[1]:,.0f}",
        floor=", ".join(
            f"{name}: {size:,.0f} (of {max(1, each // (4 if name == 'SQLiteSession' else 10))})"
            for name, (_, size) in peers.items()
        ),
    )


def measured(work: Callable[[Path, int, int], float], talks: int, each: int) -> Appended:
    speeds, size = list[float](), 0.0
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            took = work(Path(folder, "talks.db"), talks, each)
            speeds.append(talks * each / took)
            size = sum(file.stat().st_size for file in Path(folder).iterdir()) / (talks * each)
    return statistics.median(speeds), size


def ours(path: Path, talks: int, each: int) -> float:
    async def run() -> float:
        async with Host(SqliteStore(path), MuteBackend()) as host:
            refs = [await host.aget(str(number)) for number in range(talks)]
            return await timed([partial(say, ref) for ref in refs], each)

    return asyncio.run(run())


async def say(ref: ContextRef, said: str) -> None:
    await ref.aask(Append(Message.user(said)), timeout=60)


async def timed(appends: Sequence[Callable[[str], Awaitable[object]]], each: int) -> float:
    async def work(append: Callable[[str], Awaitable[object]]) -> None:
        for _ in range(each):
            await append(text())

    start = time.perf_counter()
    await asyncio.gather(*map(work, appends))
    return time.perf_counter() - start


def agents_sessions(module: Any, path: Path, talks: int, each: int) -> float:  # noqa: ANN401 - optional
    async def run() -> float:
        sessions = [module.SQLiteSession(str(number), str(path)) for number in range(talks)]

        async def add(session: Any, said: str) -> None:  # noqa: ANN401 - optional
            await session.add_items([{"role": "user", "content": said}])

        try:
            return await timed([partial(add, session) for session in sessions], each)
        finally:
            for session in sessions:
                session.close()

    return asyncio.run(run())


def langgraph_savers(module: Any, path: Path, talks: int, each: int) -> float:  # noqa: ANN401 - optional
    base = importlib.import_module("langgraph.checkpoint.base")

    def work(saver: Any, thread: str) -> None:  # noqa: ANN401 - optional
        config = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        said: list[dict[str, str]] = []
        for _ in range(each):
            said.append({"role": "user", "content": text()})
            checkpoint = base.empty_checkpoint() | {"channel_values": {"messages": said}}
            config = saver.put(config, checkpoint, {"source": "loop", "step": len(said)}, {})

    with module.SqliteSaver.from_conn_string(str(path)) as saver:
        saver.setup()
        start = time.perf_counter()
        with ThreadPoolExecutor(talks) as threads:
            list(threads.map(partial(work, saver), map(str, range(talks))))
        return time.perf_counter() - start


def optional(
    name: str, work: Callable[[Any, Path, int, int], float]
) -> Callable[[Path, int, int], float] | None:
    with suppress(ImportError):
        module = importlib.import_module(name)
        return lambda path, talks, each: work(module, path, talks, each)
    return None


agents = optional("agents", agents_sessions)
langgraph = optional("langgraph.checkpoint.sqlite", langgraph_savers)


if __name__ == "__main__":
    main(__doc__, rows)
