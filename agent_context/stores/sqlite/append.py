"""Writes, as statements inside the transaction of their batch."""

from __future__ import annotations

import sqlite3
import time

from agent_context.errors import StoreError
from agent_context.stores.sqlite.queries import ENTRY, Row, fetch_conversation
from agent_context.stores.store import KEEP_DRAFT, Entry, Write
from agent_context.stores.write_check import (
    WriteStatus,
    check_write,
    fenced_write,
    sequence_conflict,
)

__all__ = ["RejectedWrite", "append", "last_position"]


class RejectedWrite(Exception):
    """One write of a batch can't be kept, and has spoilt the transaction."""

    def __init__(self, index: int, error: StoreError) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


def last_position(connection: sqlite3.Connection) -> int:
    """The greatest position that was ever given to an entry."""
    (position,) = connection.execute(
        "SELECT max((SELECT position FROM removed), ifnull((SELECT max(pos) FROM event), 0))"
    ).fetchone()
    return int(position)


def append(
    connection: sqlite3.Connection, write: Write, position: int, index: int
) -> StoreError | None:
    """Keep the write behind `position`, or say why not. Raises `Unwritable`."""
    row = fetch_conversation(connection, write.conversation_id)
    if row is None or row.deleted:
        return fenced_write(write.conversation_id, write.epoch, None)
    verdict = check_write(write, row.epoch, row.head)
    if isinstance(verdict, StoreError):
        return verdict
    if verdict is WriteStatus.OLD:
        return None if _holds(connection, row, write) else sequence_conflict(write)
    try:
        _keep(connection, row, write, position)
    except (
        sqlite3.DataError,
        sqlite3.IntegrityError,
        sqlite3.InterfaceError,
        sqlite3.ProgrammingError,
        OverflowError,
    ) as error:
        raise RejectedWrite(index, _why(write, error)) from error
    return None


def _keep(connection: sqlite3.Connection, row: Row, write: Write, position: int) -> None:
    for place, entry in enumerate(write.entries, start=position + 1):
        connection.execute(
            "INSERT INTO event(pos, conv, seq, epoch, kind, payload, at, key)"
            " VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
            (
                place,
                row.num,
                entry.seq,
                write.epoch,
                entry.kind,
                entry.payload,
                entry.timestamp,
                entry.key,
            ),
        )
    if write.entries:
        connection.execute(
            "UPDATE conversation SET head = ?, updated_at = ? WHERE num = ?",
            (write.entries[-1].seq, time.time(), row.num),
        )
    if write.draft is None:
        connection.execute("DELETE FROM draft WHERE conv = ?", (row.num,))
    elif write.draft is not KEEP_DRAFT:
        connection.execute(
            "INSERT OR REPLACE INTO draft(conv, payload) VALUES(?, ?)", (row.num, write.draft)
        )


def _holds(connection: sqlite3.Connection, row: Row, write: Write) -> bool:
    """Whether the write is kept already."""
    found = connection.execute(
        f"SELECT epoch, {ENTRY} FROM event WHERE conv = ? AND seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608 - ours
        (row.num, write.head, write.head + len(write.entries)),
    ).fetchall()
    kept = [(each[0], Entry(*each[1:])) for each in found]
    return kept == [(write.epoch, entry) for entry in write.entries]


def _why(write: Write, error: Exception) -> StoreError:
    if "event.key" in str(error):
        keys = [entry.key for entry in write.entries if entry.key is not None]
        return StoreError(
            f"conversation {write.conversation_id}: one of the keys {keys} is used already"
        )
    return StoreError(f"conversation {write.conversation_id}: can't be kept: {error}")
