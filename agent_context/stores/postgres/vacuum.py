"""Removing what nobody can ask for any more, one conversation in one transaction."""

from __future__ import annotations

from typing import Final, LiteralString

from agent_context.stores.postgres.connection_pool import Connection, ConnectionPool, fetch_one
from agent_context.stores.store import VacuumResult

__all__ = ["vacuum"]

_DELETED: Final = "select id from {s}.conversation where deleted and not removed order by id"
_SHORTENED: Final = """
select c.id from {s}.conversation c
where not c.deleted and exists (
    select from {s}.snapshot s join {s}.event e using (conv_id)
    where conv_id = c.id and e.seq <= s.seq and e.at < %(before)s
)
order by id
"""
# It waits for a claim that is about to fork from here.
_LOCK: Final = "select from {s}.conversation where id = %(id)s for update"
_REMOVE: Final = """
with gone as (
    update {s}.conversation c set removed = true, metadata = '{{}}'
    where c.id = %(id)s and not c.removed and not exists (select from {s}.points(c.id))
    returning c.id
), entries as (delete from {s}.event e using gone where e.conv_id = gone.id returning 1),
snapshots as (delete from {s}.snapshot s using gone where s.conv_id = gone.id),
attachments as (delete from {s}.attachment a using gone where a.conv_id = gone.id),
words as (delete from {s}.words w using gone where w.conv_id = gone.id)
select (select count(*) from gone), (select count(*) from entries)
"""
_SHORTEN: Final = """
with needed as (
    select p.seq as upto, coalesce((
        select max(s.seq) from {s}.snapshot s where s.conv_id = %(id)s and s.seq <= p.seq
    ), 0) as base
    from {s}.points(%(id)s) p (seq)
), old as (
    select least(
        (select max(seq) from {s}.snapshot where conv_id = %(id)s),
        (select min(seq) - 1 from {s}.event where conv_id = %(id)s and at >= %(before)s)
    ) as upto
), entries as (
    delete from {s}.event e using old
    where e.conv_id = %(id)s and e.seq <= old.upto and not exists (
        select from needed n where e.seq > n.base and e.seq <= n.upto
    )
    returning e.conv_id, e.seq
), words as (
    delete from {s}.words w using entries e where w.conv_id = e.conv_id and w.seq = e.seq
)
select 0, count(*) from entries
"""


def vacuum(database: ConnectionPool, *, before: float | None) -> VacuumResult:
    """As `Store.vacuum` says."""
    conversations = removed = 0
    for (conversation_id,) in database.rows(_DELETED, {}):
        one, entries = _run_changes(database, _REMOVE, conversation_id, before)
        conversations += one
        removed += entries
    if before is not None:
        for (conversation_id,) in database.rows(_SHORTENED, {"before": before}):
            removed += _run_changes(database, _SHORTEN, conversation_id, before)[1]
    return VacuumResult(conversations, removed)


def _run_changes(
    database: ConnectionPool, statement: LiteralString, conversation_id: str, before: float | None
) -> tuple[int, int]:
    """How many conversations and entries went."""
    params = {"id": conversation_id, "before": before}

    def work(connection: Connection) -> tuple[int, int]:
        with connection.transaction():
            connection.execute(database.sql(_LOCK), params)
            [(conversations, entries)] = fetch_one(connection, database.sql(statement), params)
        return conversations, entries

    return database.run(work)
