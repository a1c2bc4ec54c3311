"""How long a conversation takes to find what was once said in it.

Messages of twelve words from a vocabulary whose words are as unequal as those of a language; a
query asks for six of them. Asked through the front door, of a conversation that is kept in memory
or in a SQLite file; the median of many different queries. The first search of a conversation in a
process makes the index.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from string import ascii_lowercase

from agent_context import AgentContext, Extend, Message
from agent_context.protocol import SearchHistory
from agent_context.ref import ContextRef
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from benchmarks.material import MuteBackend
from benchmarks.report import Row, main, quantile, seconds

__all__ = ["rows"]

QUERIES = 50
AT_ONCE = 1_000
GOALS = {1_000: 0.005, 100_000: 0.030}

_random = random.Random(1)
_WORDS = ["".join(_random.choices(ascii_lowercase, k=7)) for _ in range(20_000)]
_WEIGHTS = [1 / rank for rank in range(10, len(_WORDS) + 10)]


def rows(scale: float) -> Iterator[Row]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for length, goal in GOALS.items():
            count = max(100, round(length * scale))
            sqlite = stack.enter_context(closing(SqliteStore(folder / f"{count}.db")))
            for where, store in (("in memory", MemoryStore()), ("in a SQLite file", sqlite)):
                yield from _rows(store, where, count, goal)


def _rows(store: Store, where: str, count: int, goal: float) -> Iterator[Row]:
    conversation = AgentContext.start(MuteBackend(), store=store, id="c")
    try:
        for start in range(0, count, AT_ONCE):
            said = [Message.user(_text(12)) for _ in range(min(AT_ONCE, count - start))]
            conversation.ask(Extend(said), timeout=60)
        first = seconds(lambda: _search(conversation))
        times = [seconds(lambda: _search(conversation)) for _ in range(QUERIES)]
    finally:
        conversation.stop()
    reached = median(times)
    yield Row(
        what=f"`ask(SearchHistory)`, {count:,} messages {where}: p50 / p99",
        figure=f"{reached * 1e3:.1f} / {quantile(times, 0.99) * 1e3:.1f} ms",
        goal=f"≤ {goal * 1e3:.0f} ms",
        met=reached <= goal,
    )
    yield Row(
        what=f"the first one, {count:,} messages {where}: makes the index",
        figure=f"{first * 1e3:,.0f} ms",
    )


def _search(conversation: ContextRef) -> object:
    return conversation.ask(SearchHistory(_text(6)), timeout=300)


def _text(words: int) -> str:
    return " ".join(_random.choices(_WORDS, _WEIGHTS, k=words))


if __name__ == "__main__":
    main(__doc__, rows)
