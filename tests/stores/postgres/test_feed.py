"""The order of all entries: to a reader nothing appears behind what it has read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg

from agent_context.stores.postgres import PostgresStore
from agent_context.stores.store import FeedEntry
from tests.stores.material import write
from tests.stores.postgres.conftest import OpenStore
from tests.stores.postgres.test_faults import trouble, waiting
from tests.support.postgres import Admin
from tests.support.waiting import wait_until

WRITERS = 4
ROUNDS = 60


def test_a_write_that_still_runs_holds_back_what_is_written_after_it(
    dsn: str, open_store: OpenStore, schema: str, admin: Admin
) -> None:
    slow, quick = open_store(), open_store()
    slow.claim("a")
    slow.claim("locked")
    quick.claim("b")
    meets = """if new.conv_id = 'locked' then
        perform pg_advisory_xact_lock(hashtext(tg_table_schema)); end if"""
    with (
        trouble(admin, schema, meets),
        psycopg.connect(dsn) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        other.execute("select pg_advisory_xact_lock(hashtext(%s))", [schema])
        # In this order: so that it has begun to write when it meets the lock.
        held = thread.submit(slow.write, [write("a", 0, "one"), write("locked", 0, "two")])
        wait_until(lambda: bool(waiting(admin, schema)))
        quick.write([write("b", 0, "three")])

        assert quick.feed() == []

        other.rollback()
        assert held.result(20) == [None, None]
    fed = quick.feed()
    assert [each.conversation_id for each in fed] == ["a", "locked", "b"]


def test_transactions_of_others_hold_nobody_up(dsn: str, store: PostgresStore) -> None:
    store.claim("a")
    with psycopg.connect(dsn) as other:
        other.execute("select pg_current_xact_id()")
        store.write([write("a", 0, "one")])

        assert [fed.entry.seq for fed in store.feed()] == [1]


def test_readers_miss_nothing_of_what_several_nodes_write(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(WRITERS)]
    over = Event()
    with ThreadPoolExecutor(WRITERS + 2) as threads:
        readers = [threads.submit(follow, open_store(), over) for _ in range(2)]
        writers = [threads.submit(fill, store, f"c{n}") for n, store in enumerate(stores)]
        for writer in writers:
            writer.result()
        over.set()
        followed = [reader.result() for reader in readers]

    whole = stores[0].feed(limit=10_000)
    assert len(whole) == WRITERS * 3 * ROUNDS
    assert [list(whole)] * 2 == followed
    for number in range(WRITERS):
        seqs = [fed.entry.seq for fed in whole if fed.conversation_id == f"c{number}-0"]
        assert seqs == sorted(seqs)


def test_positions_go_on_where_a_restored_dump_left_off(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    store = open_store()
    store.claim("a")
    store.write([write("a", 0, "one")])
    store.close()
    # As if the server that gave the positions had counted much further.
    admin.execute(f"update {schema}.event set pos = pos + (1::bigint << 50)".encode())

    new = open_store()
    claim = new.claim("a")
    [old] = new.feed()
    new.write([write("a", 1, "two", epoch=claim.epoch)])

    assert [fed.entry.seq for fed in new.feed(after=old.position)] == [2]
    assert [fed.entry.seq for fed in open_store().feed(after=old.position)] == [2]


def fill(store: PostgresStore, name: str) -> None:
    names = [f"{name}-{number}" for number in range(3)]
    epochs = {each: store.claim(each).epoch for each in names}
    for head in range(ROUNDS):
        batch = [write(each, head, "text", epoch=epoch) for each, epoch in epochs.items()]
        assert store.write(batch) == [None] * 3


def follow(store: PostgresStore, over: Event) -> list[FeedEntry]:
    read = list[FeedEntry]()
    while True:
        last = over.is_set()
        found = store.feed(after=read[-1].position if read else 0)
        read += found
        if last and not found:
            return read
