"""What is kept of conversations, read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from agent_context.stores.fence import gone, unknown
from agent_context.stores.postgres.database import Connection, Database, Rows, fetched
from agent_context.stores.store import About, Entry, Log, Parent, Snapshot

__all__ = ["about", "conversations", "entries", "find", "load", "loaded"]

MAX: Final = (1 << 63) - 1

_STATE: Final = """
select c.parent_id, c.parent_seq, least(p.last, %(upto)s)
from {s}.conversation c, lateral (
    select case when c.deleted then (select max(p) from {s}.points(c.id) p) else c.head end as last
) p
where c.id = %(id)s and p.last is not null
"""
_SNAPSHOT: Final = """
select seq, format, payload from {s}.snapshot
where conv_id = %(id)s and seq <= %(upto)s
order by seq desc limit 1
"""
_ENTRIES: Final = """
select seq, kind, payload, at, key from {s}.event
where conv_id = %(id)s and seq > %(after)s and seq <= %(upto)s
order by seq limit %(limit)s
"""
_FIND: Final = """
select e.seq, e.kind, e.payload, e.at, e.key
from {s}.event e join {s}.conversation c on c.id = e.conv_id
where e.conv_id = %(id)s and e.key = %(key)s and not c.deleted
"""
_ABOUT: Final = """
select id, head, created_at, updated_at, metadata::text, owner, parent_id, parent_seq
from {s}.conversation
where not deleted and """
_ONE: Final = _ABOUT + "id = %(id)s"
_SOME: Final = _ABOUT + "id > %(after)s order by id limit %(limit)s"


def load(database: Database, conversation_id: str, *, upto: int | None) -> Log:
    """As `Store.load` says."""

    def work(connection: Connection) -> Log:
        with connection.transaction():
            # One view of all: a vacuum may be at work meanwhile.
            connection.execute("set transaction isolation level repeatable read, read only")
            return loaded(database, connection, conversation_id, upto)

    return database.run(work)


def loaded(
    database: Database, connection: Connection, conversation_id: str, upto: int | None
) -> Log:
    """What `load` returns, read in a transaction of the caller's."""
    parent_id, parent_seq, last = _state(database, connection, conversation_id, upto)
    params: dict[str, Any] = {"id": conversation_id, "upto": last, "limit": None}
    snapshots = fetched(connection, database.sql(_SNAPSHOT), params)
    snapshot = Snapshot(*snapshots[0]) if snapshots else None
    params["after"] = snapshot.seq if snapshot else 0
    rows = fetched(connection, database.sql(_ENTRIES), params)
    if len(rows) != last - params["after"]:
        raise gone(Parent(conversation_id, last))
    return Log(snapshot, _entries(rows), _parent(parent_id, parent_seq))


def entries(
    database: Database, conversation_id: str, *, after: int, upto: int | None, limit: int
) -> Sequence[Entry]:
    """As `Store.entries` says."""

    def work(connection: Connection) -> Sequence[Entry]:
        *_, last = _state(database, connection, conversation_id, upto)
        params = {"id": conversation_id, "after": after, "upto": last, "limit": max(limit, 0)}
        return _entries(fetched(connection, database.sql(_ENTRIES), params))

    return database.run(work)


def _state(
    database: Database, connection: Connection, conversation_id: str, upto: int | None
) -> tuple[str | None, int | None, int]:
    """Its parent, and up to which entry it can be read."""
    params = {"id": conversation_id, "upto": MAX if upto is None else upto}
    found = fetched(connection, database.sql(_STATE), params)
    if not found:
        raise unknown(conversation_id)
    parent_id, parent_seq, last = found[0]
    return parent_id, parent_seq, last


def find(database: Database, conversation_id: str, key: str) -> Entry | None:
    """As `Store.find` says."""
    found = _entries(database.rows(_FIND, {"id": conversation_id, "key": key}))
    return found[0] if found else None


def about(database: Database, conversation_id: str) -> About | None:
    """As `Store.about` says."""
    found = database.rows(_ONE, {"id": conversation_id})
    return _about(*found[0]) if found else None


def conversations(database: Database, *, after: str, limit: int) -> Sequence[About]:
    """As `Store.conversations` says."""
    return [_about(*row) for row in database.rows(_SOME, {"after": after, "limit": max(limit, 0)})]


def _entries(rows: Rows) -> Sequence[Entry]:
    return [Entry(*row) for row in rows]


def _about(
    id: str,
    head: int,
    created_at: float,
    updated_at: float,
    metadata: str,
    owner: str | None,
    parent_id: str | None,
    parent_seq: int | None,
) -> About:
    return About(
        id=id,
        head=head,
        created_at=created_at,
        updated_at=updated_at,
        metadata=json.loads(metadata),
        owner=owner,
        parent=_parent(parent_id, parent_seq),
    )


def _parent(id: str | None, seq: int | None) -> Parent | None:
    return None if id is None or seq is None else Parent(id=id, seq=seq)
