"""Keeping a batch of writes: one statement for all, and one by one what it did not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import psycopg

from agent_context.errors import StoreError, StoreUnavailable
from agent_context.stores.postgres.connection_pool import (
    Connection,
    ConnectionPool,
    Params,
    fetch_one,
)
from agent_context.stores.postgres.errors import CONFLICTS, translate_error
from agent_context.stores.store import KEEP_DRAFT, Entry, Unchanged, Write, WriteDelayed
from agent_context.stores.write_check import (
    WriteStatus,
    check_write,
    fenced_write,
    sequence_conflict,
)

__all__ = ["append"]

_Answers: TypeAlias = list[StoreError | None]

# A statement by itself: whoever is stopped while it runs leaves no lock behind.
_WRITE: Final = """
with asked as (
    select * from unnest(
        %(ids)s::text[], %(epochs)s::bigint[], %(heads)s::bigint[], %(lasts)s::bigint[],
        %(redrafts)s::boolean[], %(drafts)b::bytea[]
    ) as x (id, epoch, head, last, redraft, draft)
), free as (
    select id from {s}.conversation where id in (select id from asked)
    for no key update skip locked
), moved as (
    update {s}.conversation c
    set head = x.last,
        draft = case when x.redraft then x.draft else c.draft end,
        updated_at = extract(epoch from clock_timestamp())
    from asked x join free using (id)
    where c.id = x.id and c.epoch = x.epoch and c.head = x.head and not c.deleted
    returning c.id, c.epoch
), kept as (
    insert into {s}.event (conv_id, seq, epoch, pos, at, kind, key, payload)
    select d.id, d.seq, d.epoch,
        ((v.base + pg_current_xact_id()::text::bigint) << 20) + %(used)s + d.place,
        d.at, d.kind, d.key, d.payload
    from unnest(
        %(entry_ids)s::text[], %(entry_epochs)s::bigint[], %(seqs)s::bigint[],
        %(ats)s::float8[], %(kinds)s::text[], %(keys)s::text[], %(payloads)b::bytea[]
    ) with ordinality as d (id, epoch, seq, at, kind, key, payload, place)
    join moved using (id, epoch)
    cross join {s}.version v
)
select id, epoch from moved
"""
_STATE: Final = """
select epoch, head from {s}.conversation where id = %(id)s and not deleted for no key update
"""
_KEPT: Final = """
select seq, kind, payload, at, key from {s}.event
where conv_id = %(id)s and epoch = %(epoch)s and seq > %(first)s and seq <= %(last)s
order by seq
"""
_LIMITS: Final = """
select set_config('statement_timeout', %(statement)s, true),
    set_config('lock_timeout', %(lock)s, true)
"""
_LOCK_MS: Final = 50
"""How long one write waits for a row before it is tried again with a later batch."""
_LEAST_MS: Final = 100
_MOST: Final = (1 << 20) - 1
"""Entries whose places in one transaction have room in a position."""


class _WriteGroup(NamedTuple):
    """Writes of one owner to one conversation that follow one another."""

    id: str
    epoch: int
    head: int
    entries: tuple[Entry, ...]
    draft: bytes | Unchanged | None
    places: tuple[int, ...]
    """Where the writes stand in the batch."""

    @property
    def last(self) -> int:
        return self.head + len(self.entries)

    def can_join(self, other: _WriteGroup) -> _WriteGroup:
        return self._replace(
            entries=self.entries + other.entries,
            draft=self.draft if other.draft is KEEP_DRAFT else other.draft,
            places=self.places + other.places,
        )


def append(database: ConnectionPool, batch: Sequence[Write]) -> Sequence[StoreError | None]:
    """As `Store.write` says."""
    if sum(len(write.entries) for write in batch) > _MOST:
        raise StoreError(f"a batch holds {_MOST} entries at most: write it in pieces")
    if not batch:
        return []
    return database.run(lambda connection: _write(database, connection, batch))


def _write(database: ConnectionPool, connection: Connection, batch: Sequence[Write]) -> _Answers:
    chains, rest = _group(batch)
    try:
        moved = set(fetch_one(connection, database.sql(_WRITE), _params(chains)))
    except (psycopg.Error, UnicodeEncodeError) as error:
        if _is_for_all(connection, error):
            raise
        moved = set[tuple[object, ...]]()  # one of them is at fault, and none was kept
    for chain in chains:
        if (chain.id, chain.epoch) not in moved:
            rest.extend(chain.places)
    answers: _Answers = [None] * len(batch)
    if rest:
        _one_by_one(database, connection, batch, sorted(rest), answers)
    return answers


def _is_for_all(connection: Connection, error: Exception) -> bool:
    """Whether it is no single write's fault: the connection is lost, or a conflict is over."""
    return connection.closed or getattr(error, "sqlstate", None) in CONFLICTS


def _group(batch: Sequence[Write]) -> tuple[Sequence[_WriteGroup], list[int]]:
    """What can be tried together, and where that stands which can't."""
    chains: dict[tuple[str, int], _WriteGroup] = {}
    rest: list[int] = []
    for place, write in enumerate(batch):
        chain = _to_group(write, place)
        owner = chain.id, chain.epoch
        before = chains.get(owner)
        # Judged by what the writer believes.
        if check_write(write, write.epoch, write.head) is not WriteStatus.NEW:
            rest.append(place)
        elif before is None:
            chains[owner] = chain
        elif before.last == chain.head:
            chains[owner] = before.can_join(chain)
        else:
            rest.append(place)
    return list(chains.values()), rest


def _to_group(write: Write, place: int) -> _WriteGroup:
    return _WriteGroup(
        write.conversation_id, write.epoch, write.head, write.entries, write.draft, (place,)
    )


def _one_by_one(
    database: ConnectionPool,
    connection: Connection,
    batch: Sequence[Write],
    places: Sequence[int],
    answers: _Answers,
) -> None:
    """Keep each or say why not. Raises the server's error if it refused every one."""
    used, errors, later = 0, list[psycopg.Error](), dict[str, StoreError]()
    with connection.transaction():
        connection.execute(_LIMITS, _limits(database.timeout, len(places)))
        for place in places:
            write = batch[place]
            answer = later.get(write.conversation_id)
            if answer is None:
                answer = _alone(database, connection, write, used, errors)
            if isinstance(answer, WriteDelayed):
                later[write.conversation_id] = answer  # what follows on it can't be kept either
            answers[place] = answer
            used += len(write.entries)
        if None not in answers and len(errors) == len({write.conversation_id for write in batch}):
            raise errors[0]


def _limits(timeout: float, count: int) -> Params:
    """So that all of them together take hardly longer than one statement may."""
    most = max(_LEAST_MS, int(timeout * 1000 / count))
    return {"statement": str(most), "lock": str(min(most, _LOCK_MS))}


def _alone(
    database: ConnectionPool,
    connection: Connection,
    write: Write,
    used: int,
    errors: list[psycopg.Error],
) -> StoreError | None:
    """Keep one write or say why not; then what it did is undone.

    What the server itself says about it, other than about its data, is added to `errors`.
    """
    name = f"conversation {write.conversation_id}"
    try:
        with connection.transaction():
            return _check(database, connection, write, used)
    except psycopg.errors.UniqueViolation:
        keys = [entry.key for entry in write.entries if entry.key is not None]
        return StoreError(f"{name}: one of the keys {keys} is used already")
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        return translate_error(error, where=name)
    except psycopg.Error as error:
        if _is_for_all(connection, error):
            raise
        errors.append(error)
        answer = translate_error(error, where=name)
        return WriteDelayed(str(answer)) if isinstance(answer, StoreUnavailable) else answer


def _check(
    database: ConnectionPool, connection: Connection, write: Write, used: int
) -> StoreError | None:
    try:
        with connection.transaction():
            state = fetch_one(connection, database.sql(_STATE), {"id": write.conversation_id})
    except psycopg.errors.LockNotAvailable:
        return WriteDelayed(f"conversation {write.conversation_id}: its row is locked")
    if not state:
        return fenced_write(write.conversation_id, write.epoch, None)
    [(epoch, head)] = state
    verdict = check_write(write, epoch, head)
    if isinstance(verdict, StoreError):
        return verdict
    if verdict is WriteStatus.NEW:
        params = _params([_to_group(write, 0)], used)
        fetch_one(connection, database.sql(_WRITE), params)
        return None
    return None if _is_stored(database, connection, write) else sequence_conflict(write)


def _is_stored(database: ConnectionPool, connection: Connection, write: Write) -> bool:
    """Whether this very write was kept before."""
    params = {
        "id": write.conversation_id,
        "epoch": write.epoch,
        "first": write.head,
        "last": write.head + len(write.entries),
    }
    kept = fetch_one(connection, database.sql(_KEPT), params)
    return [Entry(*row) for row in kept] == list(write.entries)


def _params(chains: Sequence[_WriteGroup], used: int = 0) -> Params:
    rows = [(chain, entry) for chain in chains for entry in chain.entries]
    return {
        "ids": [chain.id for chain in chains],
        "epochs": [chain.epoch for chain in chains],
        "heads": [chain.head for chain in chains],
        "lasts": [chain.last for chain in chains],
        "redrafts": [chain.draft is not KEEP_DRAFT for chain in chains],
        "drafts": [None if chain.draft is KEEP_DRAFT else chain.draft for chain in chains],
        "used": used,
        "entry_ids": [chain.id for chain, _ in rows],
        "entry_epochs": [chain.epoch for chain, _ in rows],
        "seqs": [entry.seq for _, entry in rows],
        "ats": [entry.timestamp for _, entry in rows],
        "kinds": [entry.kind for _, entry in rows],
        "keys": [entry.key for _, entry in rows],
        "payloads": [entry.payload for _, entry in rows],
    }
