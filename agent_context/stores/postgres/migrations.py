"""The tables, as numbered migrations."""

from __future__ import annotations

from typing import Final, LiteralString

from agent_context.errors import StoreCorrupt
from agent_context.stores.postgres.connection_pool import Connection, ConnectionPool, fetch_one

__all__ = ["LATEST", "migrate", "prepare", "version"]

# An entry's position is the number of its transaction, moved left by 20 bits, and its place in it;
# feeding.py says why. `base` is added to the numbers after a dump was loaded into a server that
# hasn't counted so far.
#
# `points` says after which entries of a conversation forks begin that are there, or that have such
# forks themselves.
_FIRST: Final = """
create table {s}.version (
    one boolean primary key default true check (one),
    version integer not null,
    base bigint not null default 0,
    checked_at timestamptz
);
insert into {s}.version (version) values (0);
create table {s}.node (
    id text primary key,
    lease_until timestamptz not null
);
create table {s}.conversation (
    id text collate "C" primary key,
    epoch bigint not null,
    head bigint not null default 0,
    owner text,
    draft bytea,
    parent_id text collate "C",
    parent_seq bigint,
    metadata json not null default '{{}}',
    created_at float8 not null default extract(epoch from clock_timestamp()),
    updated_at float8 not null default extract(epoch from clock_timestamp()),
    deleted boolean not null default false,
    removed boolean not null default false
) with (fillfactor = 80);
create index on {s}.conversation (owner) where owner is not null;
create index on {s}.conversation (parent_id) where parent_id is not null;
create index on {s}.conversation (id) where deleted and not removed;
create table {s}.event (
    conv_id text collate "C" not null,
    seq bigint not null,
    epoch bigint not null,
    pos bigint not null unique,
    at float8 not null,
    kind text not null,
    key text collate "C",
    payload bytea not null,
    primary key (conv_id, seq)
);
create unique index event_key on {s}.event (conv_id, key) where key is not null;
create table {s}.snapshot (
    conv_id text collate "C" not null,
    seq bigint not null,
    format integer not null,
    payload bytea not null,
    primary key (conv_id, seq)
);
create table {s}.attachment (
    conv_id text collate "C" not null,
    name text collate "C" not null,
    payload bytea not null,
    primary key (conv_id, name)
);
create table {s}.words (
    conv_id text collate "C" not null,
    seq bigint not null,
    text text not null,
    vector tsvector not null,
    primary key (conv_id, seq)
);
create function {s}.points(parent text) returns setof bigint language sql stable as $$
    with recursive fork (id, seq, deleted) as (
        select id, parent_seq, deleted from {s}.conversation where parent_id = parent
        union all
        select k.id, f.seq, k.deleted from fork f join {s}.conversation k on k.parent_id = f.id
        where f.deleted
    )
    select distinct seq from fork where not deleted
$$;
"""

_MIGRATIONS: Final[tuple[LiteralString, ...]] = (_FIRST,)
LATEST: Final = len(_MIGRATIONS)

_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('agent-context ' || %(schema)s, 0))"
_EXISTS: Final = """
select exists (select from pg_tables where schemaname = %(schema)s and tablename = 'version')
"""
_SCHEMA: Final = "select from pg_namespace where nspname = %(schema)s"
# True only for a server that numbers its transactions lower than one that wrote the entries.
_REBASE: Final = """
update {s}.version v
set base = m.newest + 1 - pg_snapshot_xmin(pg_current_snapshot())::text::bigint
from (select max(pos) >> 20 as newest from {s}.event) m
where m.newest >= v.base + pg_snapshot_xmax(pg_current_snapshot())::text::bigint
"""


def prepare(database: ConnectionPool) -> None:
    """Make the tables where there are none.

    Raises `StoreCorrupt` for tables of another version: to change those is not for whoever comes
    first, while other processes use them.
    """
    found = database.run(lambda connection: version(database, connection))
    if found is None:
        found = migrate(database)
    if found < LATEST:
        raise StoreCorrupt(
            f"{database.where}: schema {database.schema} has version {found}, {LATEST} is needed."
            " Stop the processes that use it and call PostgresStore.migrate(dsn)"
        )
    if found > LATEST:
        raise _newer(database, found)
    database.run(lambda connection: connection.execute(database.sql(_REBASE)))


def migrate(database: ConnectionPool) -> int:
    """Bring the tables to the latest version, all in one transaction; the version."""
    return database.run(lambda connection: _migrate(database, connection))


def version(database: ConnectionPool, connection: Connection) -> int | None:
    """The version of the tables that are there."""
    [(exists,)] = fetch_one(connection, database.sql(_EXISTS), {"schema": database.schema})
    if not exists:
        return None
    [(found,)] = fetch_one(connection, database.sql("select version from {s}.version"), {})
    return int(found)


def _migrate(database: ConnectionPool, connection: Connection) -> int:
    with connection.transaction():
        # Released with the transaction: whoever waited here finds the work done.
        connection.execute(database.sql(_LOCK), {"schema": database.schema})
        connection.execute("set local statement_timeout = 0")
        found = version(database, connection)
        if found is None:
            _make_schema(database, connection)
        elif found > LATEST:
            raise _newer(database, found)
        for number, text in enumerate(_MIGRATIONS[found or 0 :], start=(found or 0) + 1):
            connection.execute(database.sql(text))
            connection.execute(database.sql("update {s}.version set version = %s"), [number])
    return LATEST


def _make_schema(database: ConnectionPool, connection: Connection) -> None:
    # Where an administrator has made it, nothing more is permitted to us, and needn't be.
    if not fetch_one(connection, _SCHEMA.encode(), {"schema": database.schema}):
        connection.execute(database.sql("create schema {s}"))


def _newer(database: ConnectionPool, found: int) -> StoreCorrupt:
    return StoreCorrupt(
        f"{database.where}: schema {database.schema} has version {found}, which is newer than"
        f" {LATEST}, the newest that this version knows: install a newer one"
    )
