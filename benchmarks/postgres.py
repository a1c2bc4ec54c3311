"""Durable appends to PostgreSQL, and how long it takes to make a conversation active.

Each conversation appends an entry as soon as the one before is committed. All go through one
`StoreExecutor`, so that what waits is committed together. Beside it stand plain inserts, one a
transaction, over a connection for each conversation and sixteen at most. The server is the one that
AGENT_CONTEXT_TEST_POSTGRES names, or the one of this machine; without one there are no rows.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Semaphore
from typing import Any, Final, Self
from uuid import uuid4

import orjson
import psycopg

from agent_context._runtime import Reply
from agent_context.stores.postgres import PostgresStore
from agent_context.stores.store import Entry, Snapshot, Write
from agent_context.stores.writer import StoreExecutor
from benchmarks.material import text
from benchmarks.report import Row, main, quantile, rate, seconds

__all__ = ["rows"]

DSN: Final = os.environ.get("AGENT_CONTEXT_TEST_POSTGRES", "postgresql:///test")
ROUNDS: Final = 3
CONNECTIONS: Final = 16


class Appending:
    """Conversations that append, each one entry after the other."""

    def __init__(self, store: PostgresStore, conversations: int) -> None:
        self._access = StoreExecutor(store)
        self._left = 0
        self._ended = Semaphore(0)
        claims = {name: store.claim(name) for name in names(conversations)}
        self._heads = {name: claim.head for name, claim in claims.items()}
        self._epochs = {name: claim.epoch for name, claim in claims.items()}

    def run(self, appends: int) -> None:
        self._left = appends
        for name in self._heads:
            self._next(name)
        for _ in self._heads:
            self._ended.acquire()

    def close(self) -> None:
        self._access.close()

    def _next(self, name: str) -> None:
        if self._left <= 0:
            self._ended.release()
            return
        self._left -= 1
        head = self._heads[name]
        self._heads[name] = head + 1
        reply = self._access.submit(
            Write(
                conversation_id=name,
                epoch=self._epochs[name],
                head=head,
                entries=(entry(head + 1),),
            )
        )
        reply.add_done_callback(lambda reply: self._done(name, reply))

    def _done(self, name: str, reply: Reply[None]) -> None:
        reply.get()
        self._next(name)


def rows(scale: float) -> Iterator[Row]:
    try:
        psycopg.connect(DSN, connect_timeout=3).close()
    except psycopg.OperationalError:
        return
    for conversations, appends in ((1, 1_000), (8, 4_000), (100, 20_000)):
        yield appended(conversations, max(conversations, round(appends * scale)))
    for entries in (50, 10_000):
        yield activated(entries, max(5, round(100 * scale)), snapshot=0)
    yield activated(10_000, max(5, round(100 * scale)), snapshot=9_800)


def appended(conversations: int, appends: int) -> Row:
    ours, floor = list[float](), list[float]()
    connections = min(conversations, CONNECTIONS)
    with schema() as name, PlainInserts(name, connections) as plain:
        store = PostgresStore(DSN, schema=name)
        appending = Appending(store, conversations)
        plainly = max(connections, appends // 10)
        for _ in range(ROUNDS):
            ours.append(appends / seconds(lambda: appending.run(appends)))
            floor.append(plainly / seconds(lambda: plain.run(plainly)))
        appending.close()
        store.close()
    mine, bare = statistics.median(ours), statistics.median(floor)
    talks = f"{conversations} conversation" + "s" * (conversations > 1)
    several = "s" if connections > 1 else ""
    return Row(
        what=f"durable appends to PostgreSQL, {talks}",
        figure=rate(mine),
        floor=f"plain inserts, {connections} connection{several}: {rate(bare)}",
        ratio=f"{mine / bare:.1f}",
    )


def activated(entries: int, times: int, *, snapshot: int) -> Row:
    with schema() as name:
        store, other = PostgresStore(DSN, schema=name), PostgresStore(DSN, schema=name)
        epoch = store.claim("c").epoch
        whole = tuple(entry(seq) for seq in range(1, entries + 1))
        store.write([Write(conversation_id="c", epoch=epoch, head=0, entries=whole)])
        if snapshot:
            store.save_snapshot("c", epoch, Snapshot(snapshot, 1, b"x" * 200 * snapshot))
        store.release("c", epoch)
        times_taken = [seconds(activation(other)) for _ in range(times)]
        store.close()
        other.close()
    kind = f"{entries:,} entries" + (f", snapshot of {snapshot:,}" if snapshot else "")
    middle, worst = (1000 * quantile(times_taken, share) for share in (0.5, 0.99))
    return Row(
        what=f"claim and load from PostgreSQL, {kind}: p50 / p99",
        figure=f"{middle:.1f} / {worst:.1f} ms",
    )


def activation(store: PostgresStore) -> Callable[[], object]:
    def activate() -> None:
        store.claim("c")
        store.load("c")

    return activate


class PlainInserts:
    """Threads with a connection each, which insert rows like those of the log, unfenced."""

    def __init__(self, schema: str, connections: int) -> None:
        self._table = f"{schema}_plain"
        self._connections = [psycopg.connect(DSN, autocommit=True) for _ in range(connections)]
        self._threads = ThreadPoolExecutor(connections)
        self._count = connections
        self._seq = 0

    def __enter__(self) -> Self:
        self._connections[0].execute(
            f"create table {self._table}"
            " (id text, seq bigint, kind text, payload bytea, primary key (id, seq))".encode()
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        self._connections[0].execute(f"drop table {self._table}".encode())
        for connection in self._connections:
            connection.close()

    def run(self, inserts: int) -> None:
        first, self._seq = self._seq + 1, self._seq + inserts
        share = inserts // self._count
        parts = [range(first + n * share, first + (n + 1) * share) for n in range(self._count)]
        list(self._threads.map(self._insert, self._connections, parts))

    def _insert(self, connection: psycopg.Connection[Any], seqs: range) -> None:
        statement = f"insert into {self._table} values (%s, %s, %s, %b)".encode()  # noqa: S608
        for seq in seqs:
            connection.execute(statement, ["c", seq, "appended", entry(seq).payload])


@contextmanager
def schema() -> Generator[str]:
    name = f"bench_{uuid4().hex[:12]}"
    try:
        yield name
    finally:
        with psycopg.connect(DSN, autocommit=True) as connection:
            connection.execute(f"drop schema if exists {name} cascade".encode())


def names(count: int) -> Iterator[str]:
    return (f"conversation-{number:026}" for number in range(count))


def entry(seq: int) -> Entry:
    return Entry(seq, "appended", orjson.dumps({"role": "user", "content": text()}), time.time())


if __name__ == "__main__":
    main(__doc__, rows)
