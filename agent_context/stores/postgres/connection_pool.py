"""The connections of one store, and the schema that its tables are in."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import BoundedSemaphore, Lock
from typing import Any, Final, LiteralString, TypeAlias, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus

from agent_context._runtime.fork_safety import ProcessToken, forked_process_error
from agent_context.errors import InvalidOptions, StoreUnavailable
from agent_context.stores.postgres.errors import CONFLICTS, translate_error

__all__ = ["FEED_LOCK", "Connection", "ConnectionPool", "Params", "Rows", "fetch_one"]

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
Params: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[tuple[Any, ...]]

TRIES: Final = 3
"""How often one piece of work is begun, on a new connection or after a conflict."""

_TICK: Final = 0.1
"""Seconds between two looks at the clock while a server says nothing."""
_LATER: Final = 1.0
"""Seconds that a connection waits beyond the time that the server has."""

# Held by connections that write entries, and looked for by who reads the feed.
_MARK: Final = "select pg_advisory_lock_shared(%(mark)s, hashtext(%(schema)s))"
FEED_LOCK: Final = 1633906798

# An acknowledged write must outlast the server, whatever the database's own default is. A statement
# that waits for a lock ends, and whoever stops in the middle of a transaction lets go of its own.
_SETTINGS: Final = """
select set_config('statement_timeout', %(limit)s, false),
    set_config('lock_timeout', %(limit)s, false),
    set_config('idle_in_transaction_session_timeout', %(idle)s, false),
    set_config('client_encoding', 'UTF8', false),
    set_config('synchronous_commit', case current_setting('synchronous_commit')
        when 'off' then 'on' else current_setting('synchronous_commit') end, false)
"""


class _BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Gives up on a server that says nothing, although its socket is open."""

    bound = float("inf")
    """Seconds that one statement may take."""

    def wait(self, gen: PQGen[T], interval: float = _TICK, timeout: float | None = None) -> T:
        if timeout is None:
            return super().wait(self._bounded(gen), interval)
        return super().wait(self._bounded(gen), interval, timeout)

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        end = time.monotonic() + self.bound
        try:
            wanted = next(gen)
            while True:
                # What is ready is none from time to time, so that this is seen.
                ready = yield wanted
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer in {self.bound:g} s")
                wanted = gen.send(ready)
        except StopIteration as ended:
            return cast("T", ended.value)


class ConnectionPool:
    """A few connections, each opened when first needed and anew when it was lost.

    They are in autocommit mode: a statement by itself is a transaction. If they are `marked`, those
    who read the feed wait for what they write.
    """

    def __init__(
        self, dsn: str, *, schema: str, limit: int, timeout: float, marked: bool = False
    ) -> None:
        self.schema = schema
        self._marked = marked
        self.timeout = timeout
        self._info = _conninfo(dsn, timeout)
        self.where = _where(self._info)
        self._limit = limit
        self._slots = BoundedSemaphore(limit)
        self._idle: list[Connection] = []
        self._lock = Lock()
        self._closed = False
        self._process = ProcessToken.current
        self._texts: dict[str, bytes] = {}

    def sql(self, text: LiteralString) -> bytes:
        """The statement, with the schema's name for `{s}`."""
        made = self._texts.get(text)
        if made is None:
            made = sql.SQL(text).format(s=sql.Identifier(self.schema)).as_bytes(None)
            self._texts[text] = made
        return made

    def rows(self, text: LiteralString, params: Params) -> Rows:
        """What a single statement returns."""
        statement = self.sql(text)
        return self.run(lambda connection: fetch_one(connection, statement, params))

    def run(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns. It may be begun again on another connection, and must allow that.

        Raises `StoreError` and its kinds.
        """
        begun = time.monotonic()
        for left in reversed(range(TRIES)):
            connection = self._take()
            try:
                return work(connection)
            except psycopg.Error as error:
                late = time.monotonic() - begun > self.timeout
                if not left or not self._should_retry(connection, error) or late:
                    raise translate_error(error, where=self.where) from error
            finally:
                self._give_back(connection)
        raise AssertionError("the last try returns or raises")

    @property
    def at_home(self) -> bool:
        """False in a forked child, whose connections are its parent's."""
        return self._process is ProcessToken.current

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._close_idle()

    def _connect(self) -> Connection:
        milliseconds = max(2, int(self.timeout * 1000))  # 0 would be no limit at all
        limits = {"limit": str(milliseconds), "idle": str(milliseconds // 2)}
        try:
            connection = _BoundedConnection.connect(self._info, autocommit=True)
        except psycopg.Error as error:
            raise translate_error(error, where=self.where) from error
        # Later than the server itself would end a statement: that says more.
        connection.bound = self.timeout + _LATER
        try:
            connection.execute(_SETTINGS, limits)
            if self._marked:
                connection.execute(_MARK, {"mark": FEED_LOCK, "schema": self.schema})
        except BaseException as error:
            connection.close()
            if isinstance(error, psycopg.Error):
                raise translate_error(error, where=self.where) from error
            raise
        return connection

    def _take(self) -> Connection:
        if not self.at_home:
            raise forked_process_error()
        if not self._slots.acquire(timeout=self.timeout):
            raise StoreUnavailable(
                f"{self.where}: all {self._limit} connections were busy for {self.timeout:g} s"
            )
        try:
            return self._idle_one() or self._connect()
        except BaseException:
            self._slots.release()
            raise

    def _idle_one(self) -> Connection | None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"{self.where}: the store is closed")
            return self._idle.pop() if self._idle else None

    def _should_retry(self, connection: Connection, error: psycopg.Error) -> bool:
        if not connection.closed:
            return error.sqlstate in CONFLICTS
        # What ended this one has often ended the others, too.
        self._close_idle()
        return True

    def _give_back(self, connection: Connection) -> None:
        usable = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:
            if usable and not self._closed:
                self._idle.append(connection)
            else:
                connection.close()
        self._slots.release()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            with suppress(psycopg.Error):
                connection.close()


def fetch_one(connection: Connection, statement: bytes, params: Params) -> Rows:
    """What a statement returns, in the binary format."""
    kept = {name: _text(value) if type(value) is str else value for name, value in params.items()}
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement, kept).fetchall()


def _text(value: str) -> str:
    """The value, or for one that no table can hold the empty text, which none holds either."""
    try:
        return value if value.encode().count(0) == 0 else ""
    except UnicodeEncodeError:
        return ""


def _conninfo(dsn: str, timeout: float) -> str:
    # A peer that vanished without a word must not hold a thread for ever.
    settings: dict[str, Any] = {
        "application_name": "context-actor",
        "connect_timeout": max(2, round(timeout)),
        "keepalives_idle": 10,
        "target_session_attrs": "read-write",
        "tcp_user_timeout": max(1, int(timeout * 1000)),
    }
    try:
        return make_conninfo("", **(settings | conninfo_to_dict(dsn)))
    except psycopg.Error:
        # Its own words quote the text, and with it a password.
        raise InvalidOptions(
            "dsn: not a connection string: write postgresql://user:password@host:5432/database, "
            "with %-escapes for what is no letter or digit, or host=… dbname=… user=… password=…"
        ) from None


def _where(info: str) -> str:
    """The server and database, without a password."""
    known = conninfo_to_dict(info)
    host = known.get("host") or known.get("hostaddr") or "local socket"
    return f"PostgreSQL at {host}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
