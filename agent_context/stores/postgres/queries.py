"""PostgreSQL reads: logs, entries, the change feed, what is known of a conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from agent_context.stores.postgres.connection_pool import (
    FEED_LOCK,
    Connection,
    ConnectionPool,
    Rows,
    fetch_one,
)
from agent_context.stores.store import ConversationInfo, Entry, FeedEntry, ForkOrigin, Log, Snapshot
from agent_context.stores.write_check import state_unavailable, unknown_conversation

__all__ = ["conversations", "entries", "feed", "find_by_key", "info", "load", "load_log"]

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


def load(database: ConnectionPool, conversation_id: str, *, upto: int | None) -> Log:
    """As `Store.load` says."""

    def work(connection: Connection) -> Log:
        with connection.transaction():
            # One view of all: a vacuum may be at work meanwhile.
            connection.execute("set transaction isolation level repeatable read, read only")
            return load_log(database, connection, conversation_id, upto)

    return database.run(work)


def load_log(
    database: ConnectionPool, connection: Connection, conversation_id: str, upto: int | None
) -> Log:
    """What `load` returns, read in a transaction of the caller's."""
    parent_id, parent_seq, last = _state(database, connection, conversation_id, upto)
    params: dict[str, Any] = {"id": conversation_id, "upto": last, "limit": None}
    snapshots = fetch_one(connection, database.sql(_SNAPSHOT), params)
    snapshot = Snapshot(*snapshots[0]) if snapshots else None
    params["after"] = snapshot.seq if snapshot else 0
    rows = fetch_one(connection, database.sql(_ENTRIES), params)
    if len(rows) != last - params["after"]:
        raise state_unavailable(ForkOrigin(conversation_id, last))
    return Log(snapshot, _entries(rows), _parent(parent_id, parent_seq))


def entries(
    database: ConnectionPool, conversation_id: str, *, after: int, upto: int | None, limit: int
) -> Sequence[Entry]:
    """As `Store.entries` says."""

    def work(connection: Connection) -> Sequence[Entry]:
        *_, last = _state(database, connection, conversation_id, upto)
        params = {"id": conversation_id, "after": after, "upto": last, "limit": max(limit, 0)}
        return _entries(fetch_one(connection, database.sql(_ENTRIES), params))

    return database.run(work)


def _state(
    database: ConnectionPool, connection: Connection, conversation_id: str, upto: int | None
) -> tuple[str | None, int | None, int]:
    """Its parent, and up to which entry it can be read."""
    params = {"id": conversation_id, "upto": MAX if upto is None else upto}
    found = fetch_one(connection, database.sql(_STATE), params)
    if not found:
        raise unknown_conversation(conversation_id)
    parent_id, parent_seq, last = found[0]
    return parent_id, parent_seq, last


def find_by_key(database: ConnectionPool, conversation_id: str, key: str) -> Entry | None:
    """As `Store.find` says."""
    found = _entries(database.rows(_FIND, {"id": conversation_id, "key": key}))
    return found[0] if found else None


def info(database: ConnectionPool, conversation_id: str) -> ConversationInfo | None:
    """As `Store.about` says."""
    found = database.rows(_ONE, {"id": conversation_id})
    return _about(*found[0]) if found else None


def conversations(
    database: ConnectionPool, *, after: str, limit: int
) -> Sequence[ConversationInfo]:
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
) -> ConversationInfo:
    return ConversationInfo(
        id=id,
        head=head,
        created_at=created_at,
        updated_at=updated_at,
        metadata=json.loads(metadata),
        owner=owner,
        parent=_parent(parent_id, parent_seq),
    )


def _parent(id: str | None, seq: int | None) -> ForkOrigin | None:
    return None if id is None or seq is None else ForkOrigin(id=id, seq=seq)


LOOKS: Final = 10
"""How often it is found out again which transactions are writers', if that is not clear."""

# A transaction whose own lock can't be seen has ended meanwhile or has only just begun. If nobody
# can say which, it counts as a writer.
_END: Final = """
with lock as materialized (
    select locktype, transactionid, pid, classid, objid, objsubid, database, mode
    from pg_locks where granted and locktype in ('transactionid', 'advisory')
), writer as (
    select pid from lock
    where locktype = 'advisory' and objsubid = 2 and classid = %(mark)s::oid
        and objid::bigint = hashtext(%(schema)s)::bigint & 4294967295
        and database = (select oid from pg_database where datname = current_database())
), running as (
    select x.id::text::bigint as id, l.pid, l.transactionid is null as unknown
    from pg_snapshot_xip(pg_current_snapshot()) x (id)
    left join lock l on l.locktype = 'transactionid' and l.mode = 'ExclusiveLock'
        and l.transactionid = x.id::xid
)
select
    coalesce(
        min(r.id) filter (where r.unknown or r.pid in (select pid from writer)),
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    ),
    coalesce(bool_or(r.unknown), false)
from running r
"""
_FEED: Final = """
select e.pos, e.conv_id, e.seq, e.kind, e.payload, e.at, e.key
from {s}.event e join {s}.conversation c on c.id = e.conv_id
where not c.deleted and e.pos > %(after)s
    and e.pos < (select (v.base + %(end)s) << 20 from {s}.version v)
order by e.pos limit %(limit)s
"""


def feed(database: ConnectionPool, *, after: int, limit: int) -> Sequence[FeedEntry]:
    """As `Store.feed` says."""
    params = {"after": after, "end": _end(database), "limit": max(limit, 0)}
    return [
        FeedEntry(position=position, conversation_id=conversation_id, entry=Entry(*entry))
        for position, conversation_id, *entry in database.rows(_FEED, params)
    ]


def _end(database: ConnectionPool, looks: int = LOOKS) -> int:
    """The first transaction that may still write an entry."""
    [(end, unsure)] = database.rows(_END, {"schema": database.schema, "mark": FEED_LOCK})
    return _end(database, looks - 1) if unsure and looks else int(end)
