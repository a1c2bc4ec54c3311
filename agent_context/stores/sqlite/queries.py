"""What is read from the tables, and which of it others still need."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from agent_context.stores.store import ConversationInfo, Entry, FeedEntry, ForkOrigin, Log, Snapshot
from agent_context.stores.write_check import (
    searchable_or_empty,
    state_unavailable,
    unknown_conversation,
)

__all__ = [
    "ABOUT",
    "ENTRY",
    "Row",
    "fetch_conversation",
    "fetch_log",
    "fetch_readable",
    "fork_points",
    "latest_snapshot_seq",
    "to_entries",
    "to_feed",
    "to_info",
]

ENTRY: Final = "seq, kind, payload, at, key"

ABOUT: Final = (
    "SELECT c.id, c.head, c.created_at, c.updated_at, c.metadata, c.owner, p.id, c.parent_seq"
    " FROM conversation c LEFT JOIN conversation p ON p.num = c.parent WHERE NOT c.deleted"
)

# Downwards, from a conversation to what was forked from it: a deleted fork needs its parent only
# as long as one of its own forks needs it.
POINTS: Final = """
    WITH RECURSIVE fork(seq, num, deleted) AS (
        SELECT parent_seq, num, deleted FROM conversation WHERE parent = ?
        UNION ALL
        SELECT f.seq, c.num, c.deleted
        FROM fork f JOIN conversation c ON c.parent = f.num WHERE f.deleted
    )
    SELECT DISTINCT seq FROM fork WHERE NOT deleted
"""


class Row(Struct, frozen=True):
    """What a conversation's row says of its log."""

    num: int
    epoch: int
    head: int
    deleted: bool


def fetch_conversation(connection: sqlite3.Connection, conversation_id: str) -> Row | None:
    """The conversation's row, also if it was deleted."""
    found = connection.execute(
        "SELECT num, epoch, head, deleted FROM conversation WHERE id = ?",
        (searchable_or_empty(conversation_id),),
    ).fetchone()
    if found is None:
        return None
    num, epoch, head, deleted = found
    return Row(num, epoch, head, bool(deleted))


def fetch_readable(connection: sqlite3.Connection, conversation_id: str, upto: int | None) -> Row:
    """The row, its head where reading ends. Raises `UnknownConversation`."""
    row = fetch_conversation(connection, conversation_id)
    if row is None:
        raise unknown_conversation(conversation_id)
    last = row.head
    if row.deleted:
        last = max(fork_points(connection, row.num), default=-1)
    if last < 0:
        raise unknown_conversation(conversation_id)
    return Row(row.num, row.epoch, last if upto is None else min(upto, last), row.deleted)


def fork_points(connection: sqlite3.Connection, num: int) -> Sequence[int]:
    """After which of its entries forks begin that are still there."""
    return [seq for (seq,) in connection.execute(POINTS, (num,))]


def latest_snapshot_seq(connection: sqlite3.Connection, num: int, upto: int) -> int | None:
    """The number of the newest snapshot that is not newer than entry `upto`."""
    (seq,) = connection.execute(
        "SELECT max(seq) FROM snapshot WHERE conv = ? AND seq <= ?", (num, upto)
    ).fetchone()
    return None if seq is None else int(seq)


def fetch_log(connection: sqlite3.Connection, row: Row, conversation_id: str) -> Log:
    """The log up to the row's head. Raises `UnknownConversation` if a part of it is gone."""
    snapshot = connection.execute(
        "SELECT seq, format, payload FROM snapshot WHERE conv = ? AND seq <= ?"
        " ORDER BY seq DESC LIMIT 1",
        (row.num, row.head),
    ).fetchone()
    after = snapshot[0] if snapshot else 0
    found = connection.execute(
        f"SELECT {ENTRY} FROM event WHERE conv = ? AND seq > ? AND seq <= ? ORDER BY seq",  # noqa: S608 - ours
        (row.num, after, row.head),
    ).fetchall()
    if len(found) != row.head - after:
        raise state_unavailable(ForkOrigin(conversation_id, row.head))
    parent = connection.execute(
        "SELECT p.id, c.parent_seq FROM conversation c JOIN conversation p ON p.num = c.parent"
        " WHERE c.num = ?",
        (row.num,),
    ).fetchone()
    return Log(snapshot and Snapshot(*snapshot), to_entries(found), parent and ForkOrigin(*parent))


def to_entries(rows: Iterable[Sequence[Any]]) -> Sequence[Entry]:
    """Entries from their columns `ENTRY`."""
    return tuple(Entry(*row) for row in rows)


def to_feed(rows: Iterable[Sequence[Any]]) -> Sequence[FeedEntry]:
    """The same with position and conversation in front."""
    return tuple(FeedEntry(row[0], row[1], Entry(*row[2:])) for row in rows)


def to_info(row: Sequence[Any]) -> ConversationInfo:
    """A conversation from its columns `ABOUT`."""
    return ConversationInfo(
        id=row[0],
        head=row[1],
        created_at=row[2],
        updated_at=row[3],
        metadata=orjson.loads(row[4]),
        owner=row[5],
        parent=None if row[6] is None else ForkOrigin(row[6], row[7]),
    )
