"""One SQLite file: a connection that writes, some that read, and what their errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from typing import Final

from agent_context._runtime.fork_safety import ProcessToken, forked_process_error
from agent_context.errors import InvalidOptions, StoreCorrupt, StoreError, StoreUnavailable
from agent_context.stores.sqlite.lock import FileLock
from agent_context.stores.sqlite.schema import MIGRATIONS, check_version, migrate

__all__ = ["Connect", "SqliteFile"]

Connect = Callable[[str], sqlite3.Connection]
"""Opens a database, in autocommit mode, for use by any thread."""

IDLE_READERS: Final = 4

UNAVAILABLE: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_READONLY,
    }
)
CORRUPT: Final = frozenset(
    {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}
)


class SqliteFile:
    """The connections to one file, which no other `SqliteFile` has open.

    One connection writes and checkpoints, whatever the number of threads: SQLite before 3.51.3 can
    lose what was committed when two do.
    """

    def __init__(self, path: Path, *, busy_timeout: float, connect: Connect | None) -> None:
        if path.name == ":memory:":
            raise InvalidOptions("path: a MemoryStore keeps conversations in memory")
        self.path = path.resolve()
        self._home = ProcessToken.current
        self._busy_timeout = busy_timeout
        self._connect = connect or _connect
        self._closed = False
        self._write_lock = RLock()
        self._idle_lock = Lock()
        self._idle: list[sqlite3.Connection] = []
        self._file_lock = FileLock(self.path)
        try:
            with self._translate_errors():
                self._writer = self._open()
                self._identity = _identify(self.path)
        except BaseException:
            self._file_lock.release()
            raise

    @contextmanager
    def write_transaction(self) -> Generator[sqlite3.Connection]:
        """A transaction of the one writer; durable at the end, undone if something is raised."""
        with self.writer_connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
                # What is written into a file that nobody can find any more is not kept.
                self._check_in_place()
            except BaseException:
                # Some failures end the transaction themselves.
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def writer_connection(self) -> Generator[sqlite3.Connection]:
        """The writing connection, outside a transaction."""
        with self._write_lock, self._translate_errors():
            self._check_open()
            self._check_in_place()
            yield self._writer

    @contextmanager
    def read_transaction(self) -> Generator[sqlite3.Connection]:
        """A view of the file as it is now, whatever is written meanwhile."""
        with self._translate_errors():
            connection = self._borrow_reader()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self._give_back(connection)

    def close(self) -> None:
        """Close the connections and let the file go; in a forked child they are not its own."""
        if self._home is not ProcessToken.current:
            return
        with self._write_lock:
            with self._idle_lock:
                if self._closed:
                    return
                self._closed = True
                idle, self._idle = self._idle, []
            for connection in idle:
                connection.close()
            # Last: whoever closes last writes the log back into the file.
            self._writer.close()
            self._file_lock.release()

    def _open(self) -> sqlite3.Connection:
        # Readable for nobody else: SQLite gives its other files the same mode.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = self._connect(str(self.path))
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        self._set_busy_timeout(connection)
        if check_version(connection, str(self.path)) == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnavailable(
                f"{self.path}: no write-ahead log is possible here (journal mode {mode}): choose"
                " a file on a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA wal_autocheckpoint = 1000")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")
        self._migrate(connection)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = check_version(connection, str(self.path))
            if version < len(MIGRATIONS):
                migrate(connection, version)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _set_busy_timeout(self, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA busy_timeout = {round(self._busy_timeout * 1000)}")

    def _borrow_reader(self) -> sqlite3.Connection:
        with self._idle_lock:
            self._check_open()
            if self._idle:
                return self._idle.pop()
        self._check_in_place()
        connection = self._connect(str(self.path))
        self._set_busy_timeout(connection)
        connection.execute("PRAGMA query_only = ON")
        return connection

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        with self._idle_lock:
            if not self._closed and len(self._idle) < IDLE_READERS:
                self._idle.append(connection)
                return
        connection.close()

    def _check_open(self) -> None:
        if self._home is not ProcessToken.current:
            raise forked_process_error()
        if self._closed:
            raise StoreUnavailable(f"{self.path}: the store is closed")

    def _check_in_place(self) -> None:
        """Raises `StoreUnavailable` if the file was moved, removed or replaced beneath."""
        if _identify(self.path) != self._identity:
            raise StoreUnavailable(
                f"{self.path}: the file was moved, removed or replaced while it was open: put it "
                "back with its -wal file, or close the store and open it again"
            )

    @contextmanager
    def _translate_errors(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._to_store_error(error) from error
        except OSError as error:
            raise StoreUnavailable(f"{self.path}: {error.strerror}") from error

    def _to_store_error(self, error: sqlite3.Error) -> StoreError:
        code = getattr(error, "sqlite_errorcode", -1) & 0xFF
        text = f"{self.path}: {error}"
        if code in CORRUPT:
            return StoreCorrupt(f"{text}. Restore the file from a copy")
        if code in UNAVAILABLE:
            return StoreUnavailable(text)
        return StoreError(text)


def _identify(path: Path) -> tuple[int, int] | None:
    """What tells a file from others of the same name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)
