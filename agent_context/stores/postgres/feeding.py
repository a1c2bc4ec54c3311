"""The entries of all conversations in one order, to which nothing is ever added but at its end.

An entry's position is the number of the transaction that wrote it, and its place in there. A reader
stops before the oldest writing transaction that still runs. Only stores write entries, over
connections that hold a lock as long as they last: transactions of all others hold nobody up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agent_context.stores.postgres.database import MARK, Database
from agent_context.stores.store import Entry, Fed

__all__ = ["feed"]

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


def feed(database: Database, *, after: int, limit: int) -> Sequence[Fed]:
    """As `Store.feed` says."""
    params = {"after": after, "end": _end(database), "limit": max(limit, 0)}
    return [
        Fed(position=position, conversation_id=conversation_id, entry=Entry(*entry))
        for position, conversation_id, *entry in database.rows(_FEED, params)
    ]


def _end(database: Database, looks: int = LOOKS) -> int:
    """The first transaction that may still write an entry."""
    [(end, unsure)] = database.rows(_END, {"schema": database.schema, "mark": MARK})
    return _end(database, looks - 1) if unsure and looks else int(end)
