"""Durable appends to a SQLite file, what they take on the disk, and how fast they are read again.

Each conversation appends an entry of 200 characters as soon as the one before is committed, on one
of four threads, as the pool of actors has; all through one `StoreExecutor`, with synchronous=FULL.
Beside it, in alternating rounds, the bare `sqlite3` module writes the same rows into a table with
the same key: a row a commit, and a row of each conversation a commit.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Final

import orjson

from agent_context._runtime import Reply
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Entry, Snapshot, Write
from agent_context.stores.writer import StoreExecutor
from benchmarks.material import text
from benchmarks.report import Row, main, median, quantile, rate, seconds

__all__ = ["rows"]

ROUNDS: Final = 3
THREADS: Final = 4
GOAL: Final = 6_000
"""Appends a second of a hundred conversations."""

LONG: Final = 10_000
"""Entries of a long log."""


class Appending:
    """Conversations that append, each one entry after the other, on a few threads."""

    def __init__(self, store: SqliteStore, conversations: int) -> None:
        self._access = StoreExecutor(store)
        self._ready: SimpleQueue[str | None] = SimpleQueue()
        self._heads = {name: store.claim(name).head for name in names(conversations)}
        self.waits: list[float] = []

    def run(self, appends: int) -> None:
        """Append this many entries, and wait until the last of them is kept."""
        left = count(appends - 1, -1)
        ended: SimpleQueue[None] = SimpleQueue()
        threads = [Thread(target=self._work, args=(left, ended)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for name in self._heads:
            self._ready.put(name)
        for _ in self._heads:
            ended.get()
        for _ in threads:
            self._ready.put(None)
        for thread in threads:
            thread.join()

    def close(self) -> None:
        self._access.close()

    def _work(self, left: Iterator[int], ended: SimpleQueue[None]) -> None:
        while (name := self._ready.get()) is not None:
            if next(left) < 0:
                ended.put(None)
                continue
            head = self._heads[name]
            self._heads[name] = head + 1
            reply = self._access.submit(append(name, head))
            reply.add_done_callback(self._again(name))

    def _again(self, name: str) -> Callable[[Reply[None]], object]:
        start = time.perf_counter()

        def done(reply: Reply[None]) -> None:
            reply.get()
            self.waits.append(time.perf_counter() - start)
            self._ready.put(name)

        return done


class Bare:
    """A table with the same key and one connection, without anything of ours."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(
            "CREATE TABLE event(pos INTEGER PRIMARY KEY, conv TEXT, seq INTEGER, payload BLOB)"
        )
        self._connection.execute("CREATE UNIQUE INDEX event_seq ON event(conv, seq)")
        self._seq = count()

    def run(self, appends: int, *, at_once: int) -> None:
        for _ in range(appends // at_once):
            self._connection.execute("BEGIN IMMEDIATE")
            for name in names(at_once):
                self._connection.execute(
                    "INSERT INTO event(conv, seq, payload) VALUES(?, ?, ?)",
                    (name, next(self._seq), payload()),
                )
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


def rows(scale: float) -> Iterator[Row]:
    for conversations, appends in ((1, 1_000), (8, 4_000), (100, 20_000)):
        yield from appended(conversations, max(conversations, round(appends * scale)))
    yield on_disk(max(1_000, round(20_000 * scale)))
    yield from read_again(max(1, round(20 * scale)))


def appended(conversations: int, appends: int) -> Iterator[Row]:
    ours, single, grouped = list[float](), list[float](), list[float]()
    with a_store() as store:
        appending, bare = Appending(store, conversations), Bare(store.path.with_name("bare.db"))
        alone = max(10, appends // (5 * conversations))
        for _ in range(ROUNDS):
            ours.append(appends / seconds(lambda: appending.run(appends)))
            single.append(alone / seconds(lambda: bare.run(alone, at_once=1)))
            grouped.append(appends / seconds(lambda: bare.run(appends, at_once=conversations)))
        appending.close()
        bare.close()
    mine, floor = statistics.median(ours), statistics.median(grouped)
    several = f"{conversations} conversation{'s' if conversations > 1 else ''}"
    goal = conversations == 100
    together = f", {rate(floor)} {conversations} a commit" if conversations > 1 else ""
    yield Row(
        what=f"durable appends to SQLite, {several}",
        figure=rate(mine),
        floor=f"bare `sqlite3`: {rate(statistics.median(single))} a row a commit{together}",
        ratio=f"{mine / floor:.1f}",
        goal=f"≥ {rate(GOAL)}" if goal else "",
        met=mine >= GOAL if goal else None,
    )
    waits = appending.waits
    yield Row(
        what=f"until one of them is acknowledged, {several}: p50 / p99 / max",
        figure=f"{quantile(waits, 0.5) * 1e3:.1f} / {quantile(waits, 0.99) * 1e3:.1f}"
        f" / {max(waits) * 1e3:.0f} ms",
    )


def on_disk(messages: int) -> Row:
    with a_store() as store:
        claimed = [name for name in names(100) if store.claim(name)]
        for head in range(messages // 100):
            store.write([append(name, head) for name in claimed])
        store.close()
        size, said = store.path.stat().st_size / messages, len(payload())
    return Row(
        what="bytes on disk of a message of 200 characters",
        figure=f"{size:.0f}",
        floor=f"its JSON alone: {said}",
        ratio=f"{size / said:.1f}",
    )


def read_again(times: int) -> Iterator[Row]:
    with a_store() as store:
        store.claim("c")
        store.write([append("c", 0, entries=LONG)])
        yield timed(f"load of {LONG:,} entries", lambda: store.load("c"), times)
        words = " ".join(text().split()[1:4])
        first = seconds(lambda: store.search("c", words))
        yield Row(
            what=f"first search of {LONG:,} entries: fills the index",
            figure=f"{first * 1e3:.0f} ms",
        )
        yield timed("every later search", lambda: store.search("c", words), times)
        store.save_snapshot("c", 1, Snapshot(LONG - 100, 1, payload() * 1_000))
        yield timed("load of a snapshot and 100 entries", lambda: store.load("c"), times)


@contextmanager
def a_store() -> Generator[SqliteStore]:
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(SqliteStore(Path(folder) / "store.db")) as store,
    ):
        yield store


def timed(what: str, work: Callable[[], object], times: int) -> Row:
    return Row(what=what, figure=f"{median(work, times=times) * 1e3:.2f} ms")


def names(conversations: int) -> Sequence[str]:
    return [f"conversation-{number:04}" for number in range(conversations)]


def append(name: str, head: int, *, entries: int = 1) -> Write:
    said = (
        Entry(seq, "appended", payload(), time.time())
        for seq in range(head + 1, head + 1 + entries)
    )
    return Write(conversation_id=name, epoch=1, head=head, entries=tuple(said))


def payload() -> bytes:
    return orjson.dumps({"zone": "incremental", "message": {"role": "user", "content": text()}})


if __name__ == "__main__":
    main(__doc__, rows)
