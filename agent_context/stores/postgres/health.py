"""A look at the server itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from agent_context.stores.postgres.connection_pool import Connection, ConnectionPool, fetch_one
from agent_context.stores.postgres.lease import Lease
from agent_context.stores.postgres.migrations import LATEST, version
from agent_context.stores.store import HealthCheck

__all__ = ["check_health"]

OLDEST: Final = 150_000
COMMITS: Final = 5
SLOW: Final = 0.1
"""Seconds that no commit should take."""
APART: Final = 60.0

_SERVER: Final = """
select current_setting('server_version_num')::integer, current_setting('server_version'),
    current_setting('server_encoding'), pg_is_in_recovery(), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'),
    extract(epoch from clock_timestamp())::float8
"""
_COMMIT: Final = "update {s}.version set checked_at = clock_timestamp()"


def check_health(database: ConnectionPool, lease: Lease) -> Sequence[HealthCheck]:
    """As `Store.check` says."""
    return database.run(lambda connection: list(_findings(database, connection, lease)))


def _findings(
    database: ConnectionPool, connection: Connection, lease: Lease
) -> Iterator[HealthCheck]:
    [(number, name, encoding, standby, fsync, pages, commit, clock)] = fetch_one(
        connection, database.sql(_SERVER), {}
    )
    apart = abs(clock - time.time())
    yield HealthCheck("server", number >= OLDEST, f"PostgreSQL {name}; 15 or newer is needed")
    yield HealthCheck("encoding", encoding == "UTF8", f"the database is in {encoding}")
    yield HealthCheck(
        "primary", not standby, "a standby takes no writes" if standby else "takes writes"
    )
    yield HealthCheck(
        "durability",
        fsync == pages == "on" and commit != "off",
        f"fsync {fsync}, full_page_writes {pages}, synchronous_commit {commit}",
    )
    yield HealthCheck("clock", apart < APART, f"{apart:.1f} s from this machine's; leases go by it")
    found = version(database, connection)
    yield HealthCheck(
        "schema", found == LATEST, f"{database.schema} has version {found} of {LATEST}"
    )
    yield _commits(database, connection)
    yield _lease(lease)


def _commits(database: ConnectionPool, connection: Connection) -> HealthCheck:
    times: list[float] = []
    for _ in range(COMMITS):
        begun = time.perf_counter()
        connection.execute(database.sql(_COMMIT))
        times.append(time.perf_counter() - begun)
    typical = median(times)
    return HealthCheck("commit", typical < SLOW, f"a durable commit takes {typical * 1000:.1f} ms")


def _lease(lease: Lease) -> HealthCheck:
    if not lease.held:
        return HealthCheck("lease", ok=True, text="nothing was claimed")
    age = lease.age()
    return HealthCheck(
        "lease", age < lease.seconds, f"renewed {age:.1f} s ago, {lease.seconds:g} s long"
    )
