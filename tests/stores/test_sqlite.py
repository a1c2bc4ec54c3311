"""The contract suite, run on a file, and what is special about one."""

from __future__ import annotations

import gc
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest

from agent_context.errors import (
    ConversationClosed,
    InvalidOptions,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
)
from agent_context.stores.sqlite import SqliteStore, health, schema
from agent_context.stores.store import Snapshot, Store
from agent_context.stores.writer import StoreExecutor
from agent_context.testing import StoreContract
from tests.stores.material import texts, write
from tests.support.waiting import join, wait_for

Open = Callable[[], SqliteStore]


class TestSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def make_store(self) -> Store:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> Store:
        store.close()
        return SqliteStore(self.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


def on_disk(path: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(path.parent.glob(f"{path.name}*")))


def run(program: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, args)]
    return subprocess.Popen(command, stdin=-1, stdout=-1, text=True)


def test_a_file_has_one_store_at_a_time(path: Path, store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable, match=f"store.db is used by process {os.getpid()}"):
        SqliteStore(path)

    store.close()

    SqliteStore(path).close()


# Since Python 3.13 an open connection complains when it is dropped, as it should.
@pytest.mark.filterwarnings("ignore:.*sqlite3.Connection")
def test_a_store_that_is_dropped_lets_its_file_go(path: Path) -> None:
    dropped = SqliteStore(path)
    dropped.claim("a")

    del dropped
    gc.collect()

    SqliteStore(path).close()


def test_another_name_of_the_file_is_the_same_file(path: Path, store: SqliteStore) -> None:
    other = path.with_name("other.db")
    other.symlink_to(path)

    with pytest.raises(StoreUnavailable, match=r"store\.db is used"):
        SqliteStore(other)


def test_a_lock_ends_with_its_process(path: Path) -> None:
    program = (
        "import sys; from agent_context.stores.sqlite import SqliteStore;"
        "store = SqliteStore(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    with run(program, path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreUnavailable, match=f"process {other.pid}"):
            SqliteStore(path)

        other.kill()
        other.wait()

        SqliteStore(path).close()


def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    program = (
        "import os, sys; from agent_context.stores.sqlite import SqliteStore;"
        "store = SqliteStore(sys.argv[1]); child = os.fork();"
        "child or (print('child', flush=True), sys.stdin.read()); os._exit(0)"
    )
    with run(program, path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "child\n"
        other.wait()

        SqliteStore(path).close()

        assert other.stdin is not None
        other.stdin.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(store: SqliteStore) -> None:
    store.claim("a")

    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            store.claim("a")
        except ConversationClosed:
            store.close()
            os._exit(0)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.write([write("a", 0, "one")]) == [None]


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptions, match="MemoryStore"):
        SqliteStore(":memory:")
    with pytest.raises(StoreUnavailable, match=r"nowhere/store\.db"):
        SqliteStore(tmp_path / "nowhere" / "store.db")
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StoreUnavailable, match=r"folder\.db"):
        SqliteStore(tmp_path / "folder.db")


def test_a_file_without_a_write_ahead_log_is_refused(path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"store\.db: no write-ahead log.*memory"):
        SqliteStore(path, connect=lambda _: sqlite3.connect(":memory:", isolation_level=None))


def test_a_database_of_another_program_is_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE event(id)")
    other.close()
    before = path.read_bytes()

    with pytest.raises(StoreCorrupt, match=r"store\.db is a database of another program"):
        SqliteStore(path)

    assert path.read_bytes() == before
    path.unlink()
    SqliteStore(path).close()


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_bytes(b"no database at all\n" * 500)

    with pytest.raises(StoreCorrupt, match=r"store\.db"):
        SqliteStore(path)

    assert path.read_bytes() == b"no database at all\n" * 500


def test_an_older_file_is_brought_up_to_date(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SqliteStore(path)
    old.claim("a")
    old.write([write("a", 0, "one")])
    old.close()
    added = ("CREATE TABLE extra(x)", "INSERT INTO extra SELECT count(*) FROM event")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, added))
    monkeypatch.setattr("agent_context.stores.sqlite.connection.MIGRATIONS", schema.MIGRATIONS)

    new = SqliteStore(path)

    with new._file.read_transaction() as connection:
        assert connection.execute("SELECT x FROM extra").fetchone() == (1,)
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    assert texts(new, "a") == ["one"]
    new.close()


def test_a_migration_that_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SqliteStore(path).close()
    before = path.read_bytes()
    added = ("CREATE TABLE extra(x)", "INSERT INTO nowhere VALUES(1)")
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, added))
        patched.setattr("agent_context.stores.sqlite.connection.MIGRATIONS", schema.MIGRATIONS)
        with pytest.raises(StoreError, match="nowhere"):
            SqliteStore(path)

    assert path.read_bytes() == before
    SqliteStore(path).close()


def test_a_file_of_a_newer_version_is_left_alone(path: Path) -> None:
    SqliteStore(path).close()
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    before = path.read_bytes()

    with pytest.raises(StoreCorrupt, match=r"schema is 99.*Update the library"):
        SqliteStore(path)

    assert path.read_bytes() == before


def test_conversations_are_private(path: Path, store: SqliteStore) -> None:
    store.claim("a")

    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}

    assert set(modes.values()) == {0o600}, modes


def test_a_check_says_what_matters(store: SqliteStore) -> None:
    found = {finding.name: finding for finding in store.health()}

    assert all(finding.ok for finding in found.values())
    assert found["journal"].text == "journal mode wal"
    assert found["synchronous"].text == "synchronous full"
    assert sqlite3.sqlite_version in found["sqlite"].text
    assert {"commit", "integrity", "room", "schema"} <= found.keys()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.6.23", False),
        ("3.7.0", True),
        ("3.40.1", True),
        ("3.44.5", True),
        ("3.44.6", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.7", False),
        ("3.51.0", True),
        ("3.51.2", True),
        ("3.51.3", False),
        ("3.53.0", False),
    ],
)
def test_versions_that_can_lose_a_commit_are_known(version: str, expected: bool) -> None:
    assert health.has_wal_reset_bug([int(part) for part in version.split(".")]) is expected


def test_readers_see_the_file_as_it_was_when_they_began(store: SqliteStore) -> None:
    store.claim("a")
    store.write([write("a", 0, "one")])

    with store._file.read_transaction() as connection:
        before = connection.execute("SELECT count(*) FROM event").fetchone()
        store.write([write("a", 1, "two")])
        assert connection.execute("SELECT count(*) FROM event").fetchone() == before

    assert texts(store, "a") == ["one", "two"]


def test_readers_can_t_write(store: SqliteStore) -> None:
    with (
        pytest.raises(StoreUnavailable, match="readonly"),
        store._file.read_transaction() as connection,
    ):
        connection.execute("DELETE FROM conversation")


def test_closing_does_not_disturb_who_reads(store: SqliteStore) -> None:
    store.claim("a")
    reading, closed = Event(), Event()
    seen: list[object] = []

    def read() -> None:
        with store._file.read_transaction() as connection:
            reading.set()
            wait_for(closed)
            seen.append(connection.execute("SELECT count(*) FROM conversation").fetchone())

    reader = Thread(target=read)
    reader.start()
    wait_for(reading)

    store.close()
    closed.set()
    join(reader)

    assert seen == [(1,)]


def test_a_long_log_is_indexed_in_parts(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_context.stores.message_search._PAGE", 3)
    store.claim("a")
    store.write([write("a", 0, *(f"word{number}" for number in range(10)))])

    for number in range(10):
        assert store.search("a", f"word{number} x")[0].seq == number + 1

    store.write([write("a", 10, "later")])
    assert [each.seq for each in store.search("a", "later")] == [11]


def test_searching_one_conversation_tells_nothing_of_others(store: SqliteStore) -> None:
    store.claim("a")
    store.claim("b")
    store.write([write("a", 0, "same word"), write("b", 0, "same word", "c1")])

    assert [each.seq for each in store.search("a", "same")] == [1]
    assert list(store.search("a", "c1")) == []


def test_a_search_writes_nothing(store: SqliteStore) -> None:
    store.claim("a")
    store.write([write("a", 0, "one word")])
    with store._file.read_transaction() as connection:
        before = connection.execute("PRAGMA page_count").fetchone()

    assert store.search("a", "word")

    with store._file.read_transaction() as connection:
        assert connection.execute("PRAGMA page_count").fetchone() == before


def test_a_vacuum_removes_the_words_that_earlier_versions_kept(
    path: Path, store: SqliteStore
) -> None:
    store.claim("a")
    store.claim("b")
    store.write([write("a", 0, "one"), write("b", 0, "other")])
    with store._file.write_transaction() as connection:
        connection.execute("CREATE VIRTUAL TABLE word USING fts5(conv, words, content='')")
        connection.execute("CREATE TABLE indexed(conv INTEGER PRIMARY KEY, seq INTEGER NOT NULL)")
        connection.execute("INSERT INTO word(rowid, conv, words) VALUES(1, 'c1', 'topsecret')")
        connection.execute("INSERT INTO indexed VALUES(1, 1)")
    store.close()
    store = SqliteStore(path)
    assert [each.seq for each in store.search("b", "other")] == [1]

    store.delete("a")
    store.vacuum()

    assert b"topsecret" not in on_disk(path)
    store.close()


def test_nothing_of_what_was_deleted_stays_in_the_files(path: Path, store: SqliteStore) -> None:
    store.claim("a")
    store.claim("b")
    store.write([write("a", 0, "topsecret" * 9, draft=b"topsecret"), write("b", 0, "other")])
    store.save_snapshot("a", 1, Snapshot(1, 1, b"topsecret"))
    store.put_attachment("a", "x", b"topsecret")
    store.set_metadata("a", {"title": "topsecret"})
    store.search("a", "topsecret")
    assert b"topsecret" in on_disk(path)

    store.delete("a")
    store.vacuum()

    assert b"topsecret" not in on_disk(path)
    assert [each.seq for each in store.search("b", "other")] == [1]


def test_a_vacuum_gives_room_back(path: Path, store: SqliteStore) -> None:
    store.claim("a")
    store.write([write("a", 0, *("x" * 10_000 for _ in range(100)))])
    with store._file.writer_connection() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    before = path.stat().st_size

    store.delete("a")
    store.vacuum()

    assert path.stat().st_size < before / 4


def test_a_position_is_never_given_twice(path: Path, store: SqliteStore) -> None:
    store.claim("a")
    store.claim("b")
    store.write([write("b", 0, "one"), write("a", 0, "one", "two")])
    last = store.feed()[-1].position
    store.delete("a")
    store.vacuum()
    store.close()

    again = SqliteStore(path)
    again.claim("b")
    again.write([write("b", 1, "three", epoch=2)])

    assert [fed.entry.seq for fed in again.feed(after=last)] == [2]
    again.close()


def test_many_conversations_share_commits(store: SqliteStore) -> None:
    names = [f"c{number}" for number in range(50)]
    for name in names:
        store.claim(name)
    access = StoreExecutor(store)

    replies = [access.submit(write(name, head, str(head))) for head in range(20) for name in names]

    for reply in replies:
        reply.get(timeout=30)
    assert access.close(10)
    for name in names:
        assert texts(store, name) == [str(head) for head in range(20)]


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_gone_beneath_acknowledges_nothing(
    how: str, path: Path, store: SqliteStore
) -> None:
    store.claim("a")
    assert store.write([write("a", 0, "one")]) == [None]
    aside = path.rename(path.with_suffix(".aside"))
    if how == "replaced":
        path.write_bytes(aside.read_bytes())

    with pytest.raises(StoreUnavailable, match="moved, removed or replaced"):
        store.write([write("a", 1, "two")])

    aside.replace(path)
    assert store.write([write("a", 1, "two")]) == [None]
    assert texts(store, "a") == ["one", "two"]


def test_a_file_that_is_gone_is_not_made_anew_by_who_reads(path: Path, store: SqliteStore) -> None:
    path.rename(path.with_suffix(".aside"))

    with pytest.raises(StoreUnavailable, match="moved, removed or replaced"):
        store.info("a")

    assert not path.exists()
