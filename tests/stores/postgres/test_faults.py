"""What a server can do to a store: a typed error, nothing half done, and all well afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from agent_context.errors import Fenced, StoreCorrupt, StoreError, StoreUnavailable
from agent_context.stores.postgres import PostgresStore
from agent_context.stores.store import WriteDelayed
from agent_context.stores.writer import StoreExecutor
from tests.stores.material import texts, write
from tests.stores.postgres.conftest import OpenStore
from tests.support.postgres import Admin
from tests.support.proxy import Proxy
from tests.support.waiting import WAIT, wait_until


def test_a_session_ended_in_the_middle_of_a_batch_costs_nothing(
    dsn: str, store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.claim("a")
    store.claim("b")
    with ThreadPoolExecutor(1) as thread, psycopg.connect(dsn) as other:
        other.execute(f"lock table {schema}.event in access exclusive mode".encode())
        written = thread.submit(store.write, [write("a", 0, "one"), write("b", 0, "two")])
        wait_until(lambda: bool(waiting(admin, schema)))
        [stuck] = waiting(admin, schema)

        admin.execute("select pg_terminate_backend(%s)", [stuck])
        wait_until(lambda: waiting(admin, schema) not in ([], [stuck]))
        other.rollback()

        assert written.result(20) == [None, None]
    assert (texts(store, "a"), texts(store, "b")) == (["one"], ["two"])


def test_a_locked_row_delays_its_own_conversation_alone(
    dsn: str, store: PostgresStore, schema: str
) -> None:
    epochs = {name: store.claim(name).epoch for name in ("a", "b")}
    access = StoreExecutor(store)
    with psycopg.connect(dsn) as other:
        other.execute(f"select from {schema}.conversation where id = 'b' for update".encode())
        stuck = [access.submit(write("b", head, str(head))) for head in range(3)]
        for head in range(20):
            access.submit(write("a", head, str(head), epoch=epochs["a"])).get(timeout=WAIT)

        assert not any(reply.done() for reply in stuck)
        other.rollback()

    for reply in stuck:
        reply.get(timeout=WAIT)
    assert (len(texts(store, "a")), texts(store, "b")) == (20, ["0", "1", "2"])


def test_writes_behind_a_locked_row_are_not_fenced(
    dsn: str, store: PostgresStore, schema: str
) -> None:
    store.claim("a")
    store.claim("b")
    with psycopg.connect(dsn) as other:
        other.execute(f"select from {schema}.conversation where id = 'b' for update".encode())

        answers = store.write([write("b", 0, "1"), write("a", 0, "1"), write("b", 1, "2")])

    assert [type(answer) for answer in answers] == [
        WriteDelayed,
        type(None),
        WriteDelayed,
    ]


def test_a_row_that_stays_locked_costs_its_own_conversation_alone(
    dsn: str, store: PostgresStore, schema: str
) -> None:
    store.claim("a")
    store.claim("b")
    access = StoreExecutor(store, patience=0.1)
    with psycopg.connect(dsn) as other:
        other.execute(f"select from {schema}.conversation where id = 'b' for update".encode())
        stuck = [access.submit(write("b", head, "x")) for head in range(3)]

        for reply in stuck:
            with pytest.raises(StoreUnavailable, match="locked"):
                reply.get(timeout=WAIT)
        access.submit(write("a", 0, "one")).get(timeout=WAIT)

    assert (texts(store, "a"), texts(store, "b")) == (["one"], [])


@pytest.mark.parametrize("state", ["54000", "42501", "P0001", "XX000", "53400", "57014"])
def test_whatever_is_said_of_one_write_does_not_hurt_the_others(
    state: str, store: PostgresStore, schema: str, admin: Admin
) -> None:
    for name in ("a", "b", "c"):
        store.claim(name)
    only_b = f"""if new.conv_id = 'b' then
        raise exception 'not this one' using errcode = '{state}'; end if"""

    with trouble(admin, schema, only_b):
        answers = store.write([write(name, 0, name) for name in ("a", "b", "c")])

    assert (answers[0], answers[2]) == (None, None)
    assert isinstance(answers[1], StoreError)
    assert "not this one" in str(answers[1])
    assert [texts(store, name) for name in ("a", "b", "c")] == [["a"], [], ["c"]]


def test_one_write_that_takes_too_long_does_not_hurt_the_others(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    store = open_store(timeout=1.0)
    for name in ("a", "b", "c"):
        store.claim(name)

    with trouble(admin, schema, "if new.conv_id = 'b' then perform pg_sleep(60); end if"):
        answers = store.write([write(name, 0, name) for name in ("a", "b", "c")])

    assert (answers[0], answers[2]) == (None, None)
    assert isinstance(answers[1], StoreUnavailable)


def test_a_stopped_server_loses_nothing_that_was_acknowledged(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    store = open_store(connections=3)
    access, names = StoreExecutor(store), [f"c{number}" for number in range(8)]
    epochs = {name: store.claim(name).epoch for name in names}

    def fill(name: str) -> None:
        for head in range(60):
            access.submit(write(name, head, str(head), epoch=epochs[name])).get(timeout=30)

    with ThreadPoolExecutor(len(names)) as threads:
        filled = [threads.submit(fill, name) for name in names]
        ended = sum(end_sessions(admin, schema) for _ in iter(lambda: all_done(filled), True))
        for each in filled:
            each.result()
    access.close()

    assert ended > 0
    assert [texts(store, name) for name in names] == [[str(head) for head in range(60)]] * 8


@pytest.mark.parametrize("state", ["53100", "53200", "58030", "57P03"])
def test_a_server_in_trouble_is_unavailable(
    state: str, store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.claim("a")
    with trouble(admin, schema, f"raise exception 'no space left' using errcode = '{state}'"):
        with pytest.raises(StoreUnavailable, match="no space left"):
            store.write([write("a", 0, "one", draft=b"{}")])

        assert store.entries("a") == []
        assert store.claim("a").draft is None

    assert store.write([write("a", 0, "one", epoch=2)]) == [None]


def test_damaged_data_is_corrupt(store: PostgresStore, schema: str, admin: Admin) -> None:
    store.claim("a")

    with (
        trouble(admin, schema, "raise exception 'invalid page' using errcode = 'XX001'"),
        pytest.raises(StoreCorrupt, match="invalid page"),
    ):
        store.write([write("a", 0, "one")])


def test_a_conflict_is_no_failure(store: PostgresStore, schema: str, admin: Admin) -> None:
    store.claim("a")
    admin.execute(f"create sequence {schema}.tries".encode())
    once = f"""if nextval('{schema}.tries') = 1 then
        raise exception 'deadlock' using errcode = '40P01'; end if"""

    with trouble(admin, schema, once):
        assert store.write([write("a", 0, "one")]) == [None]


def test_a_statement_that_takes_too_long_is_given_up(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    store = open_store(timeout=0.2)
    store.claim("a")

    with (
        trouble(admin, schema, "perform pg_sleep(60)"),
        pytest.raises(StoreUnavailable, match="statement timeout"),
    ):
        store.write([write("a", 0, "one")])

    assert store.write([write("a", 0, "one")]) == [None]
    assert texts(store, "a") == ["one"]


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.write([write("a", 0, "one")]),
        lambda store: store.load("a"),
        lambda store: store.feed(),
        lambda store: store.search("a", "one"),
        lambda store: store.vacuum(before=1e12),
    ],
)
def test_a_lock_that_somebody_holds_makes_it_unavailable(
    action: Callable[[PostgresStore], object],
    dsn: str,
    open_store: OpenStore,
    schema: str,
) -> None:
    store = open_store(timeout=0.2)
    store.claim("a")
    with psycopg.connect(dsn) as other:
        other.execute(f"lock table {schema}.event in access exclusive mode".encode())

        with pytest.raises(StoreUnavailable, match="timeout"):
            action(store)

        other.rollback()
    assert store.write([write("a", 0, "one")]) == [None]


def test_reads_go_on_after_a_restart_of_the_server(
    store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.claim("a")

    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            end_sessions(admin, schema)
            assert [log.entries for log in threads.map(lambda _: store.load("a"), range(8))] == [
                []
            ] * 8


def test_more_readers_than_connections_take_turns(open_store: OpenStore) -> None:
    store = open_store(connections=1)
    store.claim("a")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: store.info("a"), range(50)))

    assert None not in found


def test_a_store_whose_connections_are_all_busy_says_so(open_store: OpenStore) -> None:
    store = open_store(connections=1, timeout=0.1)
    with store._database._slots, pytest.raises(StoreUnavailable, match="all 1 connections"):
        store.info("a")

    assert store.info("a") is None


def test_a_schema_that_was_dropped_is_corrupt(
    store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.claim("a")
    admin.execute(f"drop schema {schema} cascade".encode())

    with pytest.raises(StoreCorrupt, match="does not exist"):
        store.load("a")


def test_a_server_that_forbids_it_is_not_asked_again(
    store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.claim("a")

    with (
        trouble(admin, schema, "raise exception 'not you' using errcode = '42501'"),
        pytest.raises(StoreError, match="not you") as raised,
    ):
        store.write([write("a", 0, "one")])

    assert not raised.value.retryable


def test_a_fenced_write_says_which_epoch_it_is(store: PostgresStore) -> None:
    store.claim("a")
    store.claim("a")

    [answer] = store.write([write("a", 0, "late")])

    assert isinstance(answer, Fenced)
    assert "epoch 1 is over, it is 2 now" in str(answer)


def waiting(admin: Admin, schema: str) -> list[int]:
    """The sessions that wait for a lock to write to the schema."""
    found = admin.execute(
        "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like %s",
        [f'%"{schema}"%'],
    )
    return [pid for (pid,) in found.fetchall()]


def end_sessions(admin: Admin, schema: str) -> int:
    """End every session that last used the schema."""
    ended = admin.execute(
        "select pg_terminate_backend(pid, 1000) from pg_stat_activity"
        " where pid <> pg_backend_pid() and query like %s",
        [f'%"{schema}"%'],
    )
    return ended.rowcount


def all_done(futures: list[Future[None]]) -> bool:
    return all(future.done() for future in futures)


@contextmanager
def trouble(admin: Admin, schema: str, what: str) -> Generator[None]:
    """The server does this to every entry."""
    admin.execute(
        f"""create function {schema}.trouble() returns trigger language plpgsql
        as $$ begin {what}; return new; end $$;
        create trigger trouble before insert on {schema}.event
        for each row execute function {schema}.trouble()""".encode()
    )
    try:
        yield
    finally:
        admin.execute(f"drop function {schema}.trouble cascade".encode())


@pytest.mark.parametrize(
    "action",
    [
        lambda store: store.write([write("a", 0, "one")]),
        lambda store: store.load("a"),
        lambda store: store.claim("b"),
    ],
)
def test_a_server_that_says_nothing_is_given_up(
    action: Callable[[PostgresStore], object], open_store: OpenStore, proxy: Proxy
) -> None:
    store = open_store(proxy.dsn, timeout=1.0)
    store.claim("a")
    store.load("a")
    proxy.stall()
    begun = time.monotonic()

    with pytest.raises(StoreUnavailable):
        action(store)

    assert time.monotonic() - begun < 15
    proxy.flow()
    assert store.write([write("a", 0, "one")]) == [None]


def test_a_store_is_closed_although_its_server_says_nothing(
    open_store: OpenStore, proxy: Proxy
) -> None:
    store = open_store(proxy.dsn, timeout=1.0)
    store.claim("a")
    proxy.stall()
    begun = time.monotonic()

    store.close()

    assert time.monotonic() - begun < 10
