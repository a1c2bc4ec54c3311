"""PostgreSQL: claims, releases, snapshots, metadata, attachments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent_context.errors import Fenced, OwnedByAnotherProcess
from agent_context.stores.postgres.connection_pool import Connection, ConnectionPool, fetch_one
from agent_context.stores.postgres.queries import load_log
from agent_context.stores.store import Claim, ForkOrigin, Snapshot
from agent_context.stores.write_check import (
    check_attachment,
    check_snapshot,
    deleted_conversation,
    encode_metadata,
    fenced_write,
    state_unavailable,
    unknown_conversation,
)

__all__ = [
    "claim",
    "delete",
    "get_attachment",
    "put_attachment",
    "release",
    "save_snapshot",
    "set_metadata",
]

_CLAIM: Final = """
insert into {s}.conversation as c (id, owner, epoch, parent_id, parent_seq)
values (%(id)s, %(me)s, 1, %(parent)s, %(parent_seq)s)
on conflict (id) do update set owner = excluded.owner, epoch = c.epoch + 1
where not c.deleted and (c.owner is null or c.owner = excluded.owner or not exists (
    select from {s}.node n where n.id = c.owner and n.lease_until > clock_timestamp()
))
returning epoch, head, draft
"""
_OWNER: Final = "select owner, deleted from {s}.conversation where id = %(id)s"
# The lock holds off a vacuum, which might take away what the fork is to begin from.
_PARENT: Final = "select head from {s}.conversation where id = %(id)s and not deleted for key share"
_RELEASE: Final = """
update {s}.conversation set owner = null
where id = %(id)s and epoch = %(epoch)s and owner = %(me)s
returning id
"""


def claim(
    database: ConnectionPool, conversation_id: str, *, me: str, parent: ForkOrigin | None
) -> Claim:
    """As `Store.claim` says, for the node `me`."""
    return database.run(
        lambda connection: _claim(database, connection, conversation_id, me=me, parent=parent)
    )


def release(database: ConnectionPool, conversation_id: str, epoch: int, *, me: str) -> None:
    """As `Store.release` says, for the node `me`."""
    params = {"id": conversation_id, "epoch": epoch, "me": me}
    database.rows(_RELEASE, params)


def _claim(
    database: ConnectionPool,
    connection: Connection,
    conversation_id: str,
    *,
    me: str,
    parent: ForkOrigin | None,
) -> Claim:
    params = {
        "id": conversation_id,
        "me": me,
        "parent": parent and parent.id,
        "parent_seq": parent and parent.seq,
    }
    if parent is None:
        # A statement by itself: whoever is stopped now leaves no lock behind.
        claimed = fetch_one(connection, database.sql(_CLAIM), params)
    else:
        with connection.transaction():
            if not fetch_one(connection, database.sql(_OWNER), params):
                _check(database, connection, parent)
            claimed = fetch_one(connection, database.sql(_CLAIM), params)
    for epoch, head, draft in claimed:
        return Claim(epoch=epoch, head=head, draft=draft)
    [(owner, is_deleted)] = fetch_one(connection, database.sql(_OWNER), params)
    if is_deleted:
        raise deleted_conversation(conversation_id)
    raise OwnedByAnotherProcess(conversation_id, owner or "a node that has just released it")


def _check(database: ConnectionPool, connection: Connection, parent: ForkOrigin) -> None:
    """Raise `UnknownConversation` for a parent that can't be had as it was then."""
    found = fetch_one(connection, database.sql(_PARENT), {"id": parent.id})
    if not found:
        raise unknown_conversation(parent.id)
    if not 0 <= parent.seq <= found[0][0]:
        raise state_unavailable(parent)
    load_log(database, connection, parent.id, parent.seq)


# Each is a statement by itself: whoever is stopped now leaves no lock behind.
_STATE: Final = "select epoch from {s}.conversation where id = %(id)s and not deleted"
_SAVE: Final = """
with owned (head) as (
    select head from {s}.conversation
    where id = %(id)s and epoch = %(epoch)s and head >= %(seq)s and not deleted
    for share
), ends (seq) as (
    select {s}.points(%(id)s) union all select head from owned
), wanted (seq) as (
    select (
        select max(s.seq) from (
            select seq from {s}.snapshot where conv_id = %(id)s
            union all select %(seq)s::bigint
        ) s where s.seq <= e.seq
    )
    from ends e
), dropped as (
    delete from {s}.snapshot s using owned
    where s.conv_id = %(id)s and not exists (select from wanted w where w.seq = s.seq)
), saved as (
    insert into {s}.snapshot (conv_id, seq, format, payload)
    select %(id)s, %(seq)s, %(format)s, %(payload)b from owned
    where exists (select from wanted w where w.seq = %(seq)s)
    on conflict (conv_id, seq) do update set format = excluded.format, payload = excluded.payload
)
select head from owned
"""
_ANNOTATE: Final = """
update {s}.conversation
set metadata = %(metadata)s::json, updated_at = extract(epoch from clock_timestamp())
where id = %(id)s and not deleted
returning id
"""
_ATTACH: Final = """
insert into {s}.attachment as a (conv_id, name, payload)
select id, %(name)s, %(payload)b from {s}.conversation
where id = %(id)s and not deleted for key share
on conflict (conv_id, name) do update set payload = excluded.payload
returning name
"""
_DETACH: Final = """
with known as (select id from {s}.conversation where id = %(id)s and not deleted),
dropped as (delete from {s}.attachment a where a.conv_id = %(id)s and a.name = %(name)s)
select id from known
"""
_ATTACHED: Final = """
select a.payload from {s}.attachment a join {s}.conversation c on c.id = a.conv_id
where a.conv_id = %(id)s and a.name = %(name)s and not c.deleted
"""
_DELETE: Final = """
update {s}.conversation set deleted = true, epoch = epoch + 1, owner = null, draft = null
where id = %(id)s and not deleted
returning id
"""


def save_snapshot(
    database: ConnectionPool, conversation_id: str, epoch: int, snapshot: Snapshot
) -> None:
    """As `Store.save_snapshot` says."""
    check_snapshot(conversation_id, snapshot)
    params = {
        "id": conversation_id,
        "epoch": epoch,
        "seq": snapshot.seq,
        "format": snapshot.format,
        "payload": snapshot.payload,
    }
    if database.rows(_SAVE, params):
        return
    state = database.rows(_STATE, params)
    if state and state[0][0] == epoch:
        raise Fenced(f"conversation {conversation_id} has no entry {snapshot.seq} yet")
    raise fenced_write(conversation_id, epoch, state[0][0] if state else None)


def set_metadata(
    database: ConnectionPool, conversation_id: str, metadata: Mapping[str, Any]
) -> None:
    """As `Store.annotate` says."""
    params = {"id": conversation_id, "metadata": encode_metadata(metadata).decode()}
    if not database.rows(_ANNOTATE, params):
        raise unknown_conversation(conversation_id)


def put_attachment(
    database: ConnectionPool, conversation_id: str, name: str, payload: bytes | None
) -> None:
    """As `Store.attach` says."""
    check_attachment(name, payload)
    params = {"id": conversation_id, "name": name, "payload": payload}

    if not database.rows(_DETACH if payload is None else _ATTACH, params):
        raise unknown_conversation(conversation_id)


def get_attachment(database: ConnectionPool, conversation_id: str, name: str) -> bytes | None:
    """As `Store.attached` says."""
    found = database.rows(_ATTACHED, {"id": conversation_id, "name": name})
    return found[0][0] if found else None


def delete(database: ConnectionPool, conversation_id: str) -> bool:
    """As `Store.delete` says."""
    return bool(database.rows(_DELETE, {"id": conversation_id}))
