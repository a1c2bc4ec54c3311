"""A store in one SQLite file, for one process at a time."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from agent_context.errors import Fenced, StoreError
from agent_context.stores.message_search import forget_indexes, search_entries
from agent_context.stores.sqlite.append import RejectedWrite, append, last_position
from agent_context.stores.sqlite.connection import Connect, SqliteFile
from agent_context.stores.sqlite.health import check_health
from agent_context.stores.sqlite.queries import (
    ABOUT,
    ENTRY,
    Row,
    fetch_conversation,
    fetch_log,
    fetch_readable,
    fork_points,
    latest_snapshot_seq,
    to_entries,
    to_feed,
    to_info,
)
from agent_context.stores.sqlite.vacuum import vacuum
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
from agent_context.stores.write_check import (
    check_attachment,
    check_snapshot,
    check_text,
    deleted_conversation,
    encode_metadata,
    fenced_write,
    searchable_or_empty,
    state_unavailable,
    unknown_conversation,
)

__all__ = ["SqliteStore"]


class SqliteStore(Store):
    """Keeps conversations in the file at `path`, which is made if there is none.

    A lock on the file keeps other stores out, those of other processes too: they raise
    `StoreUnavailable`. Where another program holds SQLite's own lock, a write waits for
    `busy_timeout` seconds. `connect` opens the database in a way of its own.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float = 5.0,
        connect: Connect | None = None,
    ) -> None:
        self._file = SqliteFile(Path(path), busy_timeout=busy_timeout, connect=connect)
        self._node = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"

    @property
    def path(self) -> Path:
        return self._file.path

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        check_text("conversation id", conversation_id)
        with self._file.write_transaction() as connection:
            row = fetch_conversation(connection, conversation_id)
            if row is None:
                self._make(connection, conversation_id, parent)
                return Claim(1, 0)
            if row.deleted:
                raise deleted_conversation(conversation_id)
            connection.execute(
                "UPDATE conversation SET epoch = epoch + 1, owner = ? WHERE num = ?",
                (self._node, row.num),
            )
            draft = connection.execute(
                "SELECT payload FROM draft WHERE conv = ?", (row.num,)
            ).fetchone()
            return Claim(row.epoch + 1, row.head, draft and draft[0])

    def release(self, conversation_id: str, epoch: int) -> None:
        with self._file.write_transaction() as connection:
            connection.execute(
                "UPDATE conversation SET owner = NULL WHERE id = ? AND epoch = ?",
                (searchable_or_empty(conversation_id), epoch),
            )

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        refused: dict[int, StoreError] = {}
        while True:
            try:
                return self._write(batch, refused)
            except RejectedWrite as failure:
                # The transaction is undone: once more, without this one.
                refused[failure.index] = failure.error

    def save_snapshot(self, conversation_id: str, epoch: int, snapshot: Snapshot) -> None:
        check_snapshot(conversation_id, snapshot)
        with self._file.write_transaction() as connection:
            row = fetch_conversation(connection, conversation_id)
            if row is None or row.deleted or row.epoch != epoch:
                known = None if row is None or row.deleted else row.epoch
                raise fenced_write(conversation_id, epoch, known)
            if snapshot.seq > row.head:
                raise Fenced(f"conversation {conversation_id} has no entry {snapshot.seq} yet")
            connection.execute(
                "INSERT OR REPLACE INTO snapshot(conv, seq, format, payload) VALUES(?, ?, ?, ?)",
                (row.num, snapshot.seq, snapshot.format, snapshot.payload),
            )
            self._drop_old_snapshots(connection, row)

    def load(self, conversation_id: str, *, upto: int | None = None) -> Log:
        with self._file.read_transaction() as connection:
            return fetch_log(
                connection, fetch_readable(connection, conversation_id, upto), conversation_id
            )

    def entries(
        self, conversation_id: str, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> Sequence[Entry]:
        with self._file.read_transaction() as connection:
            row = fetch_readable(connection, conversation_id, upto)
            return to_entries(
                connection.execute(
                    f"SELECT {ENTRY} FROM event WHERE conv = ? AND seq > ? AND seq <= ?"  # noqa: S608 - ours
                    " ORDER BY seq LIMIT ?",
                    (row.num, after, row.head, max(limit, 0)),
                )
            )

    def find_by_key(self, conversation_id: str, key: str) -> Entry | None:
        with self._file.read_transaction() as connection:
            row = self._alive(connection, conversation_id)
            found = (
                row
                and connection.execute(
                    f"SELECT {ENTRY} FROM event WHERE conv = ? AND key = ?",  # noqa: S608 - ours
                    (row.num, searchable_or_empty(key)),
                ).fetchone()
            )
            return Entry(*found) if found else None

    def feed(self, *, after: int = 0, limit: int = 1000) -> Sequence[FeedEntry]:
        with self._file.read_transaction() as connection:
            return to_feed(
                connection.execute(
                    f"SELECT pos, id, {ENTRY} FROM event JOIN conversation ON num = conv"  # noqa: S608 - ours
                    " WHERE pos > ? AND NOT deleted ORDER BY pos LIMIT ?",
                    (after, max(limit, 0)),
                )
            )

    def search(self, conversation_id: str, text: str, *, limit: int = 10) -> Sequence[Entry]:
        return search_entries(self, conversation_id, text, limit)

    def info(self, conversation_id: str) -> ConversationInfo | None:
        with self._file.read_transaction() as connection:
            row = self._alive(connection, conversation_id)
            found = row and connection.execute(f"{ABOUT} AND c.num = ?", (row.num,)).fetchone()
            return to_info(found) if found else None

    def conversations(self, *, after: str = "", limit: int = 100) -> Sequence[ConversationInfo]:
        with self._file.read_transaction() as connection:
            found = connection.execute(
                f"{ABOUT} AND c.id > ? ORDER BY c.id LIMIT ?",
                (searchable_or_empty(after), max(limit, 0)),
            )
            return tuple(map(to_info, found))

    def set_metadata(self, conversation_id: str, metadata: Mapping[str, Any]) -> None:
        encoded = encode_metadata(metadata)
        with self._file.write_transaction() as connection:
            row = self._known(connection, conversation_id)
            connection.execute(
                "UPDATE conversation SET metadata = ? WHERE num = ?", (encoded, row.num)
            )

    def put_attachment(self, conversation_id: str, name: str, payload: bytes | None) -> None:
        check_attachment(name, payload)
        with self._file.write_transaction() as connection:
            row = self._known(connection, conversation_id)
            if payload is None:
                connection.execute(
                    "DELETE FROM attachment WHERE conv = ? AND name = ?", (row.num, name)
                )
            else:
                connection.execute(
                    "INSERT OR REPLACE INTO attachment(conv, name, payload) VALUES(?, ?, ?)",
                    (row.num, name, payload),
                )

    def get_attachment(self, conversation_id: str, name: str) -> bytes | None:
        with self._file.read_transaction() as connection:
            row = self._alive(connection, conversation_id)
            found = (
                row
                and connection.execute(
                    "SELECT payload FROM attachment WHERE conv = ? AND name = ?",
                    (row.num, searchable_or_empty(name)),
                ).fetchone()
            )
            return found[0] if found else None

    def delete(self, conversation_id: str) -> bool:
        with self._file.write_transaction() as connection:
            row = self._alive(connection, conversation_id)
            if row is None:
                return False
            connection.execute(
                "UPDATE conversation SET deleted = 1, epoch = epoch + 1, owner = NULL"
                " WHERE num = ?",
                (row.num,),
            )
            connection.execute("DELETE FROM draft WHERE conv = ?", (row.num,))
        forget_indexes(self, conversation_id)
        return True

    def vacuum(self, *, before: float | None = None) -> VacuumResult:
        forget_indexes(self)
        return vacuum(self._file, before)

    def health(self) -> Sequence[HealthCheck]:
        return check_health(self._file)

    def close(self) -> None:
        self._file.close()

    def _write(
        self, batch: Sequence[Write], refused: Mapping[int, StoreError]
    ) -> Sequence[StoreError | None]:
        with self._file.write_transaction() as connection:
            position = last_position(connection)
            answers: list[StoreError | None] = []
            for index, write in enumerate(batch):
                answer = refused.get(index)
                if answer is None:
                    answer = append(connection, write, position, index)
                if answer is None:
                    position += len(write.entries)
                answers.append(answer)
            return answers

    def _make(
        self, connection: sqlite3.Connection, conversation_id: str, parent: ForkOrigin | None
    ) -> None:
        above = None if parent is None else self._check_parent(connection, parent)
        now = time.time()
        connection.execute(
            "INSERT INTO conversation(id, epoch, owner, created_at, updated_at, parent, parent_seq)"
            " VALUES(?, 1, ?, ?, ?, ?, ?)",
            (conversation_id, self._node, now, now, above, parent and parent.seq),
        )

    def _check_parent(self, connection: sqlite3.Connection, parent: ForkOrigin) -> int:
        row = self._known(connection, parent.id)
        if not 0 <= parent.seq <= row.head:
            raise state_unavailable(parent)
        after = latest_snapshot_seq(connection, row.num, parent.seq) or 0
        (count,) = connection.execute(
            "SELECT count(*) FROM event WHERE conv = ? AND seq > ? AND seq <= ?",
            (row.num, after, parent.seq),
        ).fetchone()
        if count != parent.seq - after:
            raise state_unavailable(parent)
        return row.num

    def _drop_old_snapshots(self, connection: sqlite3.Connection, row: Row) -> None:
        ends = (*fork_points(connection, row.num), row.head)
        wanted = {latest_snapshot_seq(connection, row.num, end) for end in ends}
        kept = connection.execute("SELECT seq FROM snapshot WHERE conv = ?", (row.num,)).fetchall()
        for (seq,) in kept:
            if seq not in wanted:
                connection.execute(
                    "DELETE FROM snapshot WHERE conv = ? AND seq = ?", (row.num, seq)
                )

    def _alive(self, connection: sqlite3.Connection, conversation_id: str) -> Row | None:
        row = fetch_conversation(connection, conversation_id)
        return None if row is None or row.deleted else row

    def _known(self, connection: sqlite3.Connection, conversation_id: str) -> Row:
        row = self._alive(connection, conversation_id)
        if row is None:
            raise unknown_conversation(conversation_id)
        return row
