"""A host that was taken for dead comes back, and can't hurt what another has taken over."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict

import pytest

pytest.importorskip("psycopg")

import psycopg

from agent_context._actor.replay import messages_in_entry
from agent_context.stores.postgres import PostgresStore
from tests.support.failover import fail_over
from tests.support.postgres import new_schema, place

LEASE = 1.5

logger = logging.getLogger(__name__)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(120)
def test_the_stopped_owner_of_twenty_conversations_writes_nothing_when_it_wakes() -> None:
    names = [f"c{number}" for number in range(20)]
    with psycopg.connect(place(), autocommit=True) as admin, new_schema(admin) as schema:
        outcome = fail_over(place(), schema, lease=LEASE, names=names)
        store = PostgresStore(place(), schema=schema)
        try:
            logs = {name: said(store, name) for name in names}
        finally:
            store.close()
    logger.info(outcome.figures())
    assert outcome.takeover < 3 * LEASE + 2
    acked = defaultdict[str, list[str]](list)
    for fact in outcome.acked:
        acked[fact["id"]].append(fact["said"])
    for name, log in logs.items():
        kept = Counter(log)
        assert [each for each in acked[name] if kept[each] != 1] == []
        # Nothing of the first owner stands behind what the second one wrote.
        owners = [each.split()[0] for each in log]
        assert len(set(owners)) == 2
        assert owners == sorted(owners, key=owners.index)


def said(store: PostgresStore, name: str) -> list[str]:
    entries = store.entries(name, limit=1_000_000)
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [record.message.text for entry in entries for record in messages_in_entry(entry)]
