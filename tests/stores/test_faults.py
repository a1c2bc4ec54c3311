"""What becomes of a store whose disk is full, slow or damaged: a typed error, nothing half done."""

from __future__ import annotations

import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import pytest

from agent_context.errors import StoreCorrupt, StoreError, StoreUnavailable
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Write
from agent_context.stores.writer import StoreExecutor
from tests.stores.material import entry, texts, write
from tests.support.waiting import WAIT, wait_for

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path, busy_timeout=0.05)
    for name in ("a", "b"):
        store.claim(name)
    store.write([write("a", 0, "one"), write("b", 0, "one")])
    yield store
    store.close()


def limit_pages(store: SqliteStore, more: int) -> None:
    with store._file.writer_connection() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + more}")


def test_on_a_full_disk_nothing_is_half_written(store: SqliteStore) -> None:
    limit_pages(store, 5)

    with pytest.raises(StoreUnavailable, match="full"):
        store.write([write("a", 1, "small"), write("b", 1, "x" * 100 * PAGE)])

    assert (texts(store, "a"), texts(store, "b")) == (["one"], ["one"])
    limit_pages(store, 1000)
    assert store.write([write("a", 1, "two")]) == [None]


def test_writes_wait_for_room(store: SqliteStore) -> None:
    limit_pages(store, 0)
    access = StoreExecutor(store)
    tried = Event()
    with store._file.writer_connection() as connection:
        connection.set_trace_callback(lambda sql: tried.set() if sql == "ROLLBACK" else None)

    reply = access.submit(write("a", 1, "x" * 20 * PAGE))
    wait_for(tried)
    assert not reply.done()
    limit_pages(store, 1000)

    reply.get(timeout=WAIT)
    assert len(texts(store, "a")) == 2


def test_a_write_that_meets_the_limit_of_a_file_can_be_repeated(path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=False
    )

    assert finished.returncode == 0, finished.stderr
    with closing(SqliteStore(path)) as store:
        said = texts(store, "a")
        assert len(said) == int(finished.stdout)
        assert all(finding.ok for finding in store.health())


LIMITED = f"""
import resource, sys
from agent_context.errors import StoreUnavailable
from agent_context.stores.sqlite import SqliteStore
from tests.stores.material import write

store = SqliteStore(sys.argv[1])
store.claim("a")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, ({100 * PAGE}, hard))
head = 0
while head < 10_000:
    try:
        store.write([write("a", head, "x" * {PAGE})])
    except StoreUnavailable:
        break
    head += 1
assert 10 < head < 1_000, head
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert store.write([write("a", head, "after")]) == [None]
print(head + 1)
store.close()
"""


def test_a_file_that_another_program_locks_is_unavailable(path: Path, store: SqliteStore) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StoreUnavailable, match=r"store\.db: database is locked"):
            store.write([write("a", 1, "two")])
        with pytest.raises(StoreUnavailable, match="locked"):
            store.claim("a")
        assert texts(store, "a") == ["one"]

    assert store.write([write("a", 1, "two")]) == [None]


def test_writes_wait_for_the_lock_of_another_program(path: Path, store: SqliteStore) -> None:
    access = StoreExecutor(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        replies = [access.submit(write("a", head, "more")) for head in range(1, 4)]
        assert access.read(store.info, "a").get(timeout=WAIT)
        assert not replies[0].done()
        other.execute("COMMIT")

    for reply in replies:
        reply.get(timeout=WAIT)
    assert texts(store, "a") == ["one", "more", "more", "more"]


def test_a_damaged_page_is_told_from_a_full_disk(path: Path, store: SqliteStore) -> None:
    store.write([write("a", 1, *("x" * PAGE for _ in range(50)))])
    store.close()
    content = bytearray(path.read_bytes())
    for page in range(10 * PAGE, len(content), PAGE):
        content[page : page + 200] = b"\xff" * 200
    path.write_bytes(content)

    with closing(SqliteStore(path)) as damaged:
        with pytest.raises(StoreCorrupt, match=r"store\.db.*Restore the file"):
            damaged.load("a")
        found = {finding.name: finding for finding in damaged.health()}
        assert not found["integrity"].ok
        assert found["room"].ok


def test_a_damaged_head_is_found_at_once(path: Path, store: SqliteStore) -> None:
    store.close()
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])

    with pytest.raises(StoreCorrupt, match=r"store\.db"):
        SqliteStore(path)


def test_a_torn_log_loses_nothing_that_is_whole(path: Path, store: SqliteStore) -> None:
    copy = path.with_name("copy.db")
    copy.write_bytes(path.read_bytes())
    log = path.with_name("store.db-wal").read_bytes()
    copy.with_name("copy.db-wal").write_bytes(log + log[-PAGE:])

    with closing(SqliteStore(copy)) as torn:
        assert texts(torn, "a") == ["one"]
        assert torn.write([write("a", 1, "two")]) == [None]


def test_what_sqlite_can_t_hold_is_refused_alone(store: SqliteStore) -> None:
    with store._file.writer_connection() as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    large = [write("a", 1, "small"), write("a", 2, "x" * 200_000), write("b", 1, "two")]

    first, second, third = store.write(large)

    assert (first, third) == (None, None)
    assert isinstance(second, StoreError)
    assert not isinstance(second, StoreUnavailable)
    assert (texts(store, "a"), texts(store, "b")) == (["one", "small"], ["one", "two"])


def test_a_number_that_sqlite_can_t_hold_is_refused_alone(store: SqliteStore) -> None:
    odd = Write(conversation_id="a", epoch=1, head=1, entries=(entry(2, at=float("nan")),))

    refused, kept = store.write([odd, write("b", 1, "two")])

    assert isinstance(refused, StoreError)
    assert kept is None


def test_writes_to_a_closed_store_fail_in_time(store: SqliteStore) -> None:
    access = StoreExecutor(store, patience=0.05)
    store.close()

    with pytest.raises(StoreUnavailable, match="the store is closed"):
        access.submit(write("a", 1, "two")).get(timeout=WAIT)
    with pytest.raises(StoreUnavailable, match="the store is closed"):
        access.read(store.load, "a").get(timeout=WAIT)


def test_a_store_that_can_t_open_its_file_lets_it_go(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(StoreUnavailable):
            SqliteStore(path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    SqliteStore(path).close()
