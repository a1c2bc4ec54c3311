"""What idle conversations take: memory, the time to start and stop them, the collector's pause.

Each size runs in a process of its own. A conversation holds 20 messages of 200 characters, each
text distinct; memory is the growth of the resident set after a full collection. kB are 1,000 bytes.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pykka

from agent_context import AgentContext, ContextRef, Extend, Message
from agent_context.protocol import Len
from benchmarks.material import MuteBackend, text
from benchmarks.report import Row, main, rate, seconds

__all__ = ["rows"]

GOAL = 12_000
MESSAGES = 20
AT_ONCE = 500


class Figures(msgspec.Struct, frozen=True):
    """Of `count` live conversations in one process. Bytes and seconds."""

    count: int
    empty: float
    filled: float
    starting: float
    pause: float
    stopping: float


def rows(scale: float) -> Iterator[Row]:
    for count in (10_000, 100_000):
        yield from _told(_in_process(max(1_000, round(count * scale))))


def _told(figures: Figures) -> Iterator[Row]:
    count = figures.count
    live = f"{count:,} live conversations"
    yield Row(
        what=f"memory of an idle conversation, {live}",
        figure=f"{figures.filled / count / 1000:.1f} kB",
        floor=f"its text alone: {MESSAGES * 200 / 1000:.1f} kB",
        ratio=f"{figures.filled / count / (MESSAGES * 200):.1f}",
        goal="≤ 12 kB",
        met=figures.filled / count <= GOAL,
    )
    yield Row(what=f"the same, empty, {live}", figure=f"{figures.empty / count / 1000:.1f} kB")
    yield Row(what=f"starts, {live}", figure=rate(count / figures.starting))
    yield Row(what=f"full `gc.collect()`, {live}", figure=f"{figures.pause:.2f} s")
    yield Row(
        what=f"`ActorRegistry.stop_all()`, {live}",
        figure=f"{figures.stopping:.1f} s ({rate(count / figures.stopping)})",
    )


def _in_process(count: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.memory", "--child", str(count)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603 - ours
    return msgspec.json.decode(finished.stdout, type=Figures)


def _figures(count: int) -> Figures:
    backend = MuteBackend()
    _fill([AgentContext.start(backend) for _ in range(100)])  # what the first ones bring along
    pykka.ActorRegistry.stop_all()
    before = _resident()
    live: list[ContextRef] = []
    starting = seconds(lambda: _start(live, count, backend))
    empty = _resident() - before
    _fill(live)
    filled = _resident() - before
    pause = seconds(gc.collect)
    stopping = seconds(pykka.ActorRegistry.stop_all)
    return Figures(count, empty, filled, starting, pause, stopping)


def _start(live: list[ContextRef], count: int, backend: MuteBackend) -> None:
    live += (AgentContext.start(backend) for _ in range(count))
    for start in range(0, count, AT_ONCE):
        _settled(live[start : start + AT_ONCE])


def _fill(live: list[ContextRef]) -> None:
    for start in range(0, len(live), AT_ONCE):
        part = live[start : start + AT_ONCE]
        for context in part:
            context.tell(Extend([Message.user(text()) for _ in range(MESSAGES)]))
        _settled(part)


def _settled(part: list[ContextRef]) -> None:
    for reply in [context.actor_ref.ask(Len(), block=False) for context in part]:
        reply.get(timeout=60)


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _child() -> int | None:
    """How many conversations this process is to hold; None if it is the parent."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--child", type=int)
    child: int | None = parser.parse_known_args()[0].child
    return child


def _run() -> None:
    count = _child()
    if count is None:
        main(__doc__, rows)
    else:
        print(msgspec.json.encode(_figures(count)).decode())


if __name__ == "__main__":
    _run()
