"""How soon another host has the conversations of one that was stopped under load.

Two processes with a host each share a PostgreSQL: the one that AGENT_CONTEXT_TEST_POSTGRES names,
or the one of this machine; without one there are no rows. The first owns 20 conversations and
appends to all; it gets SIGSTOP, and SIGCONT when the second one has written. What counts as stale
is every append that one of them was told is kept and that the log does not hold.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Final

import psycopg
from psycopg import sql

from agent_context._actor.replay import messages_in_entry
from agent_context.stores.postgres import PostgresStore
from benchmarks.report import Row, main, quantile
from tests.support.failover import Failover, fail_over

__all__ = ["rows"]

DSN: Final = os.environ.get("AGENT_CONTEXT_TEST_POSTGRES", "postgresql:///test")
SCHEMA: Final = "benchmark_failover"
CONVERSATIONS: Final = 20
DROP: Final = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(SCHEMA))


def rows(scale: float) -> Iterator[Row]:
    try:
        admin = psycopg.connect(DSN, autocommit=True, connect_timeout=3)
    except psycopg.OperationalError:
        return
    with admin:
        for lease in (5.0,) if scale < 1 else (1.5, 5.0):
            admin.execute(DROP)
            yield from told(lease)
            admin.execute(DROP)


def told(lease: float) -> Iterator[Row]:
    names = [f"c{number}" for number in range(CONVERSATIONS)]
    outcome = fail_over(DSN, SCHEMA, lease=lease, names=names)
    stale = lost(outcome)
    yield Row(
        what=f"{CONVERSATIONS} conversations taken over, lease of {lease} s",
        figure=f"{outcome.takeover:.2f} s after the stop",
    )
    times = outcome.activations
    yield Row(
        what="the activation of one of them: p50 / max",
        figure=f"{quantile(times, 0.5) * 1e3:.1f} / {max(times) * 1e3:.1f} ms",
    )
    refused = sum(fact["what"] == "refused" for fact in outcome.old)
    yield Row(
        what="stale appends that were acknowledged",
        figure=f"{stale} of {len(outcome.acked):,}; {refused} refused",
        goal="0",
        met=stale == 0,
    )


def lost(outcome: Failover) -> int:
    """How many acknowledged appends the logs do not hold."""
    kept: Counter[str] = Counter()
    store = PostgresStore(DSN, schema=SCHEMA)
    try:
        for fed in store.feed(limit=1_000_000):
            kept.update(
                f"{fed.conversation_id} {record.message.text}"
                for record in messages_in_entry(fed.entry)
            )
    finally:
        store.close()
    return sum(kept[f"{fact['id']} {fact['said']}"] != 1 for fact in outcome.acked)


if __name__ == "__main__":
    main(__doc__, rows)
