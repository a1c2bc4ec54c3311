"""What is changed about conversations beside their logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent_context.errors import Fenced
from agent_context.stores.fence import checked_text, fenced, object_of, unknown
from agent_context.stores.postgres.database import Connection, Database, fetched
from agent_context.stores.store import Snapshot

__all__ = ["annotate", "attach", "attached", "delete", "save_snapshot"]

_OWNED: Final = (
    "select epoch, head from {s}.conversation where id = %(id)s and not deleted for share"
)
_SAVE: Final = """
insert into {s}.snapshot (conv_id, seq, format, payload)
values (%(id)s, %(seq)s, %(format)s, %(payload)b)
on conflict (conv_id, seq) do update set format = excluded.format, payload = excluded.payload
"""
_DROP_OLD: Final = """
with ends (seq) as (select {s}.points(%(id)s) union all select %(head)s::bigint),
wanted as (
    select (
        select max(s.seq) from {s}.snapshot s where s.conv_id = %(id)s and s.seq <= e.seq
    ) as seq
    from ends e
)
delete from {s}.snapshot s
where s.conv_id = %(id)s and not exists (select from wanted w where w.seq = s.seq)
"""
_ANNOTATE: Final = """
update {s}.conversation
set metadata = %(metadata)s::json, updated_at = extract(epoch from clock_timestamp())
where id = %(id)s and not deleted
returning id
"""
_KNOWN: Final = "select from {s}.conversation where id = %(id)s and not deleted for key share"
_ATTACH: Final = """
insert into {s}.attachment (conv_id, name, payload) values (%(id)s, %(name)s, %(payload)b)
on conflict (conv_id, name) do update set payload = excluded.payload
"""
_DETACH: Final = "delete from {s}.attachment where conv_id = %(id)s and name = %(name)s"
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
    params: dict[str, Any] = {
        "id": conversation_id,
        "seq": snapshot.seq,
        "format": snapshot.format,
        "payload": snapshot.payload,
    }

    def work(connection: Connection) -> None:
        with connection.transaction():
            state = fetched(connection, database.sql(_OWNED), params)
            if not state or state[0][0] != epoch:
                raise fenced(conversation_id, epoch, state[0][0] if state else None)
            params["head"] = state[0][1]
            if snapshot.seq > params["head"]:
                raise Fenced(f"conversation {conversation_id} has no entry {snapshot.seq} yet")
            connection.execute(database.sql(_SAVE), params)
            connection.execute(database.sql(_DROP_OLD), params)

    database.run(work)


def annotate(database: Database, conversation_id: str, metadata: Mapping[str, Any]) -> None:
    """As `Store.annotate` says."""
    params = {"id": conversation_id, "metadata": object_of(metadata).decode()}
    if not database.rows(_ANNOTATE, params):
        raise unknown(conversation_id)


def attach(database: Database, conversation_id: str, name: str, payload: bytes | None) -> None:
    """As `Store.attach` says."""
    checked_text("attachment", name)
    params = {"id": conversation_id, "name": name, "payload": payload}

    def work(connection: Connection) -> None:
        with connection.transaction():
            if not fetched(connection, database.sql(_KNOWN), params):
                raise unknown(conversation_id)
            statement = _DETACH if payload is None else _ATTACH
            connection.execute(database.sql(statement), params)

    database.run(work)


def attached(database: Database, conversation_id: str, name: str) -> bytes | None:
    """As `Store.attached` says."""
    found = database.rows(_ATTACHED, {"id": conversation_id, "name": name})
    return found[0][0] if found else None


def delete(database: Database, conversation_id: str) -> bool:
    """As `Store.delete` says."""
    return bool(database.rows(_DELETE, {"id": conversation_id}))
