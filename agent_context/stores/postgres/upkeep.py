"""What is changed about conversations beside their logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent_context.errors import Fenced
from agent_context.stores.fence import checked_text, fenced, object_of, unknown
from agent_context.stores.postgres.database import Database
from agent_context.stores.store import Snapshot

__all__ = ["annotate", "attach", "attached", "delete", "save_snapshot"]

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


def save_snapshot(database: Database, conversation_id: str, epoch: int, snapshot: Snapshot) -> None:
    """As `Store.save_snapshot` says."""
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
    raise fenced(conversation_id, epoch, state[0][0] if state else None)


def annotate(database: Database, conversation_id: str, metadata: Mapping[str, Any]) -> None:
    """As `Store.annotate` says."""
    params = {"id": conversation_id, "metadata": object_of(metadata).decode()}
    if not database.rows(_ANNOTATE, params):
        raise unknown(conversation_id)


def attach(database: Database, conversation_id: str, name: str, payload: bytes | None) -> None:
    """As `Store.attach` says."""
    checked_text("attachment", name)
    params = {"id": conversation_id, "name": name, "payload": payload}

    if not database.rows(_DETACH if payload is None else _ATTACH, params):
        raise unknown(conversation_id)


def attached(database: Database, conversation_id: str, name: str) -> bytes | None:
    """As `Store.attached` says."""
    found = database.rows(_ATTACHED, {"id": conversation_id, "name": name})
    return found[0][0] if found else None


def delete(database: Database, conversation_id: str) -> bool:
    """As `Store.delete` says."""
    return bool(database.rows(_DELETE, {"id": conversation_id}))
