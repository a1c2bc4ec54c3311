"""What PostgreSQL adds to the contract: tables, connections, and a server that has its own will."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg.conninfo import make_conninfo
from psycopg.errors import InsufficientPrivilege

from agent_context._runtime.fork_safety import ProcessToken
from agent_context.errors import (
    ConversationClosed,
    Fenced,
    InvalidOptions,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    UnknownConversation,
)
from agent_context.stores.postgres import PostgresStore, migrations
from agent_context.stores.store import Entry, Snapshot, Write
from tests.runtime.conftest import refuse_threads
from tests.stores.material import entry, texts, write
from tests.stores.postgres.conftest import OpenStore
from tests.support.postgres import Admin
from tests.support.proxy import Proxy


def test_a_new_database_gets_its_tables(open_store: OpenStore) -> None:
    first = open_store()
    first.claim("a")

    assert open_store().info("a") is not None


def test_many_may_open_a_new_database_at_once(open_store: OpenStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(lambda _: open_store(), range(8)))

    assert [store.info("a") for store in stores] == [None] * 8


def test_without_psycopg_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['psycopg'] = None; import agent_context.stores.postgres"

    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert "pip install 'context-actor[postgres]'" in finished.stderr


@pytest.mark.parametrize(
    ("found", "advice"), [(0, r"PostgresStore\.migrate"), (999, "install a newer")]
)
def test_tables_of_another_version_are_refused(
    found: int, advice: str, dsn: str, open_store: OpenStore, schema: str, admin: Admin
) -> None:
    open_store()
    admin.execute(f"update {schema}.version set version = {found}".encode())

    with pytest.raises(StoreCorrupt, match=advice):
        open_store()
    if found:
        with pytest.raises(StoreCorrupt, match=advice):
            PostgresStore.migrate(dsn, schema=schema)


def test_older_tables_are_migrated_when_asked_to(
    dsn: str, open_store: OpenStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_one(open_store())
    more = (*migrations._MIGRATIONS, "alter table {s}.event add column more text")
    monkeypatch.setattr(migrations, "_MIGRATIONS", more)
    monkeypatch.setattr(migrations, "LATEST", 2)
    with pytest.raises(StoreCorrupt, match="version 1, 2 is needed"):
        open_store()

    assert PostgresStore.migrate(dsn, schema=schema) == 2
    assert PostgresStore.migrate(dsn, schema=schema) == 2

    assert texts(open_store(), "a") == ["one"]


def test_a_migration_that_fails_changes_nothing(
    dsn: str, open_store: OpenStore, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store()
    more = (*migrations._MIGRATIONS, "drop table {s}.words", "no SQL at all")
    monkeypatch.setattr(migrations, "_MIGRATIONS", more)
    monkeypatch.setattr(migrations, "LATEST", 3)

    with pytest.raises(StoreError, match="syntax"):
        PostgresStore.migrate(dsn, schema=schema)
    monkeypatch.undo()

    store = open_store()
    write_one(store)
    assert store.search("a", "one")


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1/test") as raised:
        PostgresStore("postgresql://me:secret@127.0.0.1:1/test")

    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: PostgresStore("nonsense=1"), "dsn"),
        (lambda: PostgresStore("", lease=0), "lease"),
        (lambda: PostgresStore("", timeout=-1), "timeout"),
        (lambda: PostgresStore("", connections=0), "connections"),
        (lambda: PostgresStore("", schema=""), "schema"),
        (lambda: PostgresStore("", node="a\0"), "node"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], object], what: str) -> None:
    with pytest.raises(InvalidOptions, match=what):
        make()


def test_a_schema_may_have_any_name(open_store: OpenStore, admin: Admin) -> None:
    try:
        store = open_store(schema='A "strange" näme')
        write_one(store)

        assert texts(store, "a") == ["one"]
    finally:
        admin.execute('drop schema "A ""strange"" näme" cascade')


def test_a_schema_that_somebody_made_is_enough(
    open_store: OpenStore, dsn: str, schema: str, admin: Admin
) -> None:
    role = f"role_{schema}"
    try:
        admin.execute(f"create role {role} login".encode())
    except InsufficientPrivilege:
        pytest.skip("a role can't be made here")
    admin.execute(f"create schema {schema} authorization {role}".encode())
    try:
        store = open_store(make_conninfo(dsn, options=f"-c role={role}"))
        write_one(store)

        assert texts(store, "a") == ["one"]
        store.close()
    finally:
        admin.execute(f"drop owned by {role}; drop role {role}".encode())


def test_payloads_come_back_byte_for_byte(store: PostgresStore) -> None:
    claim = store.claim("a")
    payloads = [b'{"b":1,"a":"\\u0000\\ud800"}', b'{ "b" : 1.0 }', b"\0\xff"]
    entries = tuple(Entry(n, "k", payload, 0.1) for n, payload in enumerate(payloads, start=1))

    answers = store.write([Write(conversation_id="a", epoch=claim.epoch, head=0, entries=entries)])

    assert answers == [None]
    assert tuple(store.entries("a")) == entries


def test_a_write_whose_answer_was_lost_is_kept_once(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.dsn)
    store.claim("a")
    store.write([write("a", 0, "one")])

    proxy.swallow_next()
    answers = store.write([write("a", 1, "two"), write("b", 0, "nobody's")])

    assert proxy.swallowed.is_set()
    assert answers[0] is None
    assert isinstance(answers[1], StoreError)
    assert texts(store, "a") == ["one", "two"]


def test_a_claim_whose_answer_was_lost_is_made_again(open_store: OpenStore, proxy: Proxy) -> None:
    store = open_store(proxy.dsn)
    store.claim("before")

    proxy.swallow_next()
    claim = store.claim("a")

    assert store.write([write("a", 0, "one", epoch=claim.epoch)]) == [None]


def test_one_bad_write_does_not_hurt_the_others(store: PostgresStore) -> None:
    for name in ("a", "b", "c"):
        store.claim(name)
    used = Write(
        conversation_id="b", epoch=1, head=0, entries=(entry(1, key="k"), entry(2, key="k"))
    )
    strange = write("\0\ud800", 0, "x")

    answers = store.write([write("a", 0, "one"), used, strange, write("c", 0, "three")])

    assert [type(answer) for answer in answers] == [type(None), StoreError, Fenced, type(None)]
    assert [texts(store, name) for name in ("a", "b", "c")] == [["one"], [], ["three"]]


@pytest.mark.parametrize("name", ["", "nul \0", "lone \ud800"])
def test_what_can_t_be_kept_can_t_be_found(name: str, store: PostgresStore) -> None:
    store.claim("a")

    assert (store.info(name), store.find_by_key(name, "k"), store.get_attachment(name, "n")) == (
        None,
    ) * 3
    assert (store.find_by_key("a", name), store.get_attachment("a", name), store.delete(name)) == (
        None,
        None,
        False,
    )
    store.release(name, 1)
    with pytest.raises(UnknownConversation):
        store.load(name)
    with pytest.raises(Fenced):
        store.save_snapshot(name, 1, Snapshot(0, 1, b""))


def test_writes_of_a_batch_that_don_t_follow_one_another_are_judged_alone(
    store: PostgresStore,
) -> None:
    store.claim("a")

    answers = store.write([write("a", 0, "one"), write("a", 5, "six"), write("a", 1, "two")])

    assert [type(answer) for answer in answers] == [type(None), Fenced, type(None)]
    assert texts(store, "a") == ["one", "two"]


def test_a_number_that_no_table_can_hold_is_refused(store: PostgresStore) -> None:
    store.claim("a")
    store.claim("b")

    answers = store.write([write("a", 1 << 64, "far"), write("b", 0, "one")])

    assert isinstance(answers[0], StoreError)
    assert answers[1] is None


def test_a_batch_too_large_for_one_transaction_is_refused(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.claim("a")
    monkeypatch.setattr("agent_context.stores.postgres.append._MOST", 1)

    with pytest.raises(StoreError, match="at most"):
        store.write([write("a", 0, "one", "two")])


def test_commits_are_durable_even_if_the_database_would_rather_not(
    dsn: str, open_store: OpenStore
) -> None:
    lazy = make_conninfo(dsn, options="-c synchronous_commit=off")

    found = {finding.name: finding for finding in open_store(lazy).health()}

    assert found["durability"].ok
    assert "synchronous_commit on" in found["durability"].text


def test_a_check_of_a_healthy_server_finds_no_fault(store: PostgresStore) -> None:
    store.claim("a")

    findings = {finding.name: finding for finding in store.health()}

    assert {"server", "schema", "durability", "clock", "commit", "lease"} <= set(findings)
    assert findings["schema"].ok
    assert findings["lease"].ok


def test_a_search_writes_nothing(store: PostgresStore, schema: str, admin: Admin) -> None:
    write_one(store)

    assert [found.seq for found in store.search("a", "one")] == [1]

    copied = f"select count(*) from {schema}.words".encode()
    assert admin.execute(copied).fetchone() == (0,)


def test_what_another_process_wrote_is_found(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    write_one(first)
    assert second.search("a", "later") == ()

    first.write([write("a", 1, "later")])

    assert [found.seq for found in second.search("a", "later")] == [2]


def test_an_entry_of_megabytes_is_found(store: PostgresStore) -> None:
    store.claim("a")
    long = " ".join(f"word{number}" for number in range(300_000))

    assert store.write([write("a", 0, long + " needle")]) == [None]

    assert [found.seq for found in store.search("a", "needle")] == [1]


def test_forms_of_a_word_are_found_and_not_what_merely_contains_it(store: PostgresStore) -> None:
    store.claim("a")
    store.write([write("a", 0, "art", "a party", "party of arts, all 100%", "100 percent")])

    assert [found.seq for found in store.search("a", "art")] == [1, 3]
    assert store.search("a", "party 100%")[0].seq == 3


def test_a_snapshot_that_comes_late_takes_nobody_s_place(
    store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.claim("a")
    store.write([write("a", 0, "one", "two", "three")])

    for seq in (3, 1):
        store.save_snapshot("a", 1, Snapshot(seq, 1, b"{}"))

    kept = admin.execute(f"select seq from {schema}.snapshot".encode()).fetchall()
    assert kept == [(3,)]
    assert store.load("a").snapshot == Snapshot(3, 1, b"{}")


def test_a_store_is_of_no_use_to_a_forked_child(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessToken, "current", ProcessToken())

    with pytest.raises(ConversationClosed, match="spawn"):
        store.info("a")
    store.close()

    monkeypatch.undo()
    assert store.info("a") is None


def test_a_closed_store_says_so(open_store: OpenStore) -> None:
    store = open_store()
    store.close()
    store.close()

    with pytest.raises(StoreUnavailable, match="closed"):
        store.claim("a")


def write_one(store: PostgresStore) -> None:
    claim = store.claim("a")
    assert store.write([write("a", 0, "one", epoch=claim.epoch)]) == [None]
    store.release("a", claim.epoch)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:hunter2@host:port/db",
        "postgresql://user:hunter2@ho st/db",
        "postgresql://user:hunter2%zz@host/db",
        "host=db password=hunter2 user",
        "host=db password='hunter2",
        "mysql://user:hunter2@host/db",
    ],
)
def test_a_connection_string_that_is_none_shows_no_password(dsn: str) -> None:
    with pytest.raises((InvalidOptions, StoreUnavailable)) as caught:
        PostgresStore(dsn, timeout=0.5)

    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_lease_that_no_thread_can_keep_is_refused(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    refuse_threads(monkeypatch, 1)

    with pytest.raises(StoreUnavailable, match="no thread could be started to keep the lease"):
        store.claim("a")

    assert store.claim("a").epoch == 1
