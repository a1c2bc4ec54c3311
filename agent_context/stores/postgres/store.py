"""Conversations in PostgreSQL."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final

from agent_context.errors import InvalidOptions, StoreError
from agent_context.stores.message_search import forget_indexes, search_entries
from agent_context.stores.postgres import (
    append,
    health,
    migrations,
    queries,
    rows,
    vacuum,
)
from agent_context.stores.postgres.connection_pool import ConnectionPool
from agent_context.stores.postgres.lease import Lease
from agent_context.stores.store import (
    Claim,
    ConversationInfo,
    Entry,
    FeedEntry,
    ForkOrigin,
    HealthCheck,
    Log,
    Snapshot,
    Store,
    VacuumResult,
    Write,
)
from agent_context.stores.write_check import check_text

__all__ = ["PostgresStore"]

SCHEMA: Final = "agent_context"


class PostgresStore(Store):
    """Keeps conversations in a database that several processes share, each owning some of them.

    While a process is alive, its conversations are its own; `lease` seconds after its last sign of
    life others may claim them. The server's clock decides. `node` is how others see the owner, host
    and process id by default; each store adds something of its own.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = SCHEMA,
        lease: float = 5.0,
        node: str | None = None,
        connections: int = 4,
        timeout: float = 10.0,
    ) -> None:
        """Connect, and make the tables in a database that has none.

        `timeout` is how many seconds the server may take for a statement or for a new connection.
        Raises `StoreUnavailable`, and `StoreCorrupt` for tables of another version.
        """
        _check_positive("lease", lease)
        if node is not None:
            check_text("node", node)
        self._database = _database(dsn, schema, connections, timeout)
        try:
            migrations.prepare(self._database)
        except BaseException:
            self._database.close()
            raise
        # Apart from the others: one writes all entries, and no rush can delay a sign of life.
        self._writer = _database(dsn, schema, 1, timeout, marked=True)
        pulse = _database(dsn, schema, 1, min(timeout, lease))
        self._lease = Lease(pulse, seconds=lease, node=node)
        # A store that nobody has any more owns nothing.
        self._farewell = weakref.finalize(self, _let_go, self._database, self._writer, self._lease)
        self._farewell.atexit = False
        self._writing = Lock()
        self._closing = Lock()
        self._closed = False

    @staticmethod
    def migrate(dsn: str, *, schema: str = SCHEMA, timeout: float = 60.0) -> int:
        """Bring the tables to the version that this library needs; the version.

        To be called once, by whoever deploys, while no process with another version runs.
        """
        database = _database(dsn, schema, 1, timeout)
        try:
            return migrations.migrate(database)
        finally:
            database.close()

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        check_text("conversation id", conversation_id)
        self._lease.ensure()
        return rows.claim(self._database, conversation_id, me=self._lease.owner, parent=parent)

    def release(self, conversation_id: str, epoch: int) -> None:
        rows.release(self._database, conversation_id, epoch, me=self._lease.owner)

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        # One at a time: so the feed has the entries of a conversation in their own order.
        with self._writing:
            return append.append(self._writer, batch)

    def save_snapshot(self, conversation_id: str, epoch: int, snapshot: Snapshot) -> None:
        rows.save_snapshot(self._database, conversation_id, epoch, snapshot)

    def load(self, conversation_id: str, *, upto: int | None = None) -> Log:
        return queries.load(self._database, conversation_id, upto=upto)

    def entries(
        self, conversation_id: str, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> Sequence[Entry]:
        return queries.entries(self._database, conversation_id, after=after, upto=upto, limit=limit)

    def find_by_key(self, conversation_id: str, key: str) -> Entry | None:
        return queries.find_by_key(self._database, conversation_id, key)

    def feed(self, *, after: int = 0, limit: int = 1000) -> Sequence[FeedEntry]:
        return queries.feed(self._database, after=after, limit=limit)

    def search(self, conversation_id: str, text: str, *, limit: int = 10) -> Sequence[Entry]:
        return search_entries(self, conversation_id, text, limit)

    def info(self, conversation_id: str) -> ConversationInfo | None:
        return queries.info(self._database, conversation_id)

    def conversations(self, *, after: str = "", limit: int = 100) -> Sequence[ConversationInfo]:
        return queries.conversations(self._database, after=after, limit=limit)

    def set_metadata(self, conversation_id: str, metadata: Mapping[str, Any]) -> None:
        rows.set_metadata(self._database, conversation_id, metadata)

    def put_attachment(self, conversation_id: str, name: str, payload: bytes | None) -> None:
        rows.put_attachment(self._database, conversation_id, name, payload)

    def get_attachment(self, conversation_id: str, name: str) -> bytes | None:
        return rows.get_attachment(self._database, conversation_id, name)

    def delete(self, conversation_id: str) -> bool:
        forget_indexes(self, conversation_id)
        return rows.delete(self._database, conversation_id)

    def vacuum(self, *, before: float | None = None) -> VacuumResult:
        forget_indexes(self)
        return vacuum.vacuum(self._database, before=before)

    def health(self) -> Sequence[HealthCheck]:
        return health.check_health(self._database, self._lease)

    def close(self) -> None:
        """Release all that this store owns, end its lease and its connections.

        If the server can't be reached, the lease runs out by itself.
        """
        with self._closing:
            if self._closed or not self._database.at_home:
                return
            self._closed = True
            self._farewell()
            self._lease.end()


def _let_go(database: ConnectionPool, writer: ConnectionPool, lease: Lease) -> None:
    if database.at_home:
        database.close()
        writer.close()
        lease.stop()


def _database(
    dsn: str, schema: str, connections: int, timeout: float, *, marked: bool = False
) -> ConnectionPool:
    check_text("schema", schema)
    _check_positive("timeout", timeout)
    _check_positive("connections", connections)
    return ConnectionPool(dsn, schema=schema, limit=connections, timeout=timeout, marked=marked)


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise InvalidOptions(f"{name}: a number above 0 expected, not {value!r}")
