"""Processes that are killed or stopped while they write, and those that take over from them."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from statistics import median
from threading import Event, Semaphore
from typing import NamedTuple

import pytest

from agent_context.errors import OwnedByAnotherProcess
from agent_context.stores.postgres import PostgresStore
from agent_context.stores.writer import StoreExecutor
from tests.stores.postgres.conftest import OpenStore
from tests.support.appender import following
from tests.support.appenders import Appender, Fact
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until

logger = logging.getLogger(__name__)

LEASE = 0.6
TIMES = int(os.environ.get("AGENT_CONTEXT_SOAK", "0"))
"""How often the slow tests kill something."""
LONG = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not TIMES, reason="scripts/soak runs it"),
]


class Row(NamedTuple):
    """What an entry of an appender says."""

    epoch: int
    seq: int
    pid: int


@pytest.mark.parametrize("times", [4, pytest.param(TIMES, marks=LONG)])
def test_what_a_killed_process_acknowledged_is_kept(
    times: int, dsn: str, schema: str, open_store: OpenStore
) -> None:
    names = [f"c{number}" for number in range(8)]
    acked = list[Fact]()
    for _ in range(times):
        with Appender(dsn, schema, LEASE, names) as appender:
            appender.go()
            appender.until("acked", random.randint(1, 1500))
            appender.kill()
            acked += appender.all("acked")

    store = open_store()
    logs = {name: rows(store, name) for name in names}

    logger.info("%d kills, %d writes acknowledged", times, len(acked))
    assert all(is_whole(log) for log in logs.values())
    assert [fact for fact in acked if not holds(logs, fact)] == []
    for name in names:
        wait_until(partial(can_claim, store, name))


@pytest.mark.parametrize(
    ("times", "lease"), [(1, LEASE), pytest.param(max(1, TIMES // 5), 5.0, marks=LONG)]
)
def test_an_owner_that_was_stopped_can_write_no_more(
    times: int, lease: float, dsn: str, schema: str, open_store: OpenStore
) -> None:
    store = open_store()
    for number in range(times):
        names = [f"{number}-{each}" for each in range(20)]
        old = Appender(dsn, schema, lease, names)
        new = Appender(dsn, schema, lease, names)
        with old, new:
            fail_over(old, new, names)
        logs = {name: rows(store, name) for name in names}

        assert all(is_whole(log) for log in logs.values())
        assert all({row.epoch for row in log} == {1, 2} for log in logs.values())
        assert len(old.all("fenced")) == len(names)
        acked = old.all("acked") + new.all("acked")
        assert [fact for fact in acked if not holds(logs, fact)] == []


@pytest.mark.parametrize("times", [1, pytest.param(max(1, TIMES // 5), marks=LONG)])
def test_what_a_killed_server_acknowledged_is_kept(
    times: int, server: PostgresServer, open_store: OpenStore
) -> None:
    store = open_store(server.dsn)
    access, names = StoreExecutor(store, patience=60), [f"c{number}" for number in range(8)]
    epochs = {name: store.claim(name).epoch for name in names}
    over, acked = Event(), Semaphore(0)

    def fill(name: str) -> int:
        for seq in count(1):
            access.submit(following(name, epochs[name], seq, 0)).get(timeout=90)
            acked.release()
            if over.is_set():
                return seq
        raise AssertionError

    with ThreadPoolExecutor(len(names)) as threads:
        filled = {name: threads.submit(fill, name) for name in names}
        for _ in range(times):
            assert all(acked.acquire(timeout=30) for _ in range(400))
            server.kill()
            server.start()
        over.set()
        heads = {name: each.result() for name, each in filled.items()}
    access.close()

    logger.info("%d kills of the server, %d writes acknowledged", times, sum(heads.values()))
    assert {name: len(rows(store, name)) for name in names} == heads
    assert [fed.entry for fed in store.feed(limit=1_000_000) if fed.conversation_id == "c0"] == [
        *store.entries("c0", limit=1_000_000)
    ]
    store.close()


def fail_over(old: Appender, new: Appender, names: list[str]) -> None:
    """Stop the owner under load, and let it run on when the next one has written."""
    old.go()
    old.until("claimed", len(names))
    old.until("acked", 50 * len(names))
    old.signal(signal.SIGSTOP)
    stopped = time.time()
    new.go()
    claims = new.until("claimed", len(names))
    new.until("acked", 5 * len(names))
    old.signal(signal.SIGCONT)
    old.until("fenced", len(names))
    new.until("acked", len(new.all("acked")) + len(names))

    active = [1000 * (claim["claim"] + claim["load"]) for claim in claims]
    logger.info(
        "%d conversations taken over within %.2f s of the stop, activated in %.1f ms"
        " (at most %.1f), %d stale writes refused",
        len(names),
        max(claim["at"] for claim in claims) - stopped,
        median(active),
        max(active),
        len(old.all("fenced")),
    )


def rows(store: PostgresStore, conversation: str) -> list[Row]:
    entries = store.entries(conversation, limit=1_000_000)
    texts = [json.loads(entry.payload)["content"] for entry in entries]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [Row(*map(int, text.split())) for text in texts]


def is_whole(log: list[Row]) -> bool:
    """Everything in its place, and nothing of an older owner behind what a newer one wrote."""
    epochs = [row.epoch for row in log]
    return [row.seq for row in log] == list(range(1, len(log) + 1)) and epochs == sorted(epochs)


def holds(logs: dict[str, list[Row]], fact: Fact) -> bool:
    log = logs[fact["id"]]
    row = Row(fact["epoch"], fact["seq"], fact["pid"])
    return row.seq <= len(log) and log[row.seq - 1] == row


def can_claim(store: PostgresStore, conversation: str) -> bool:
    try:
        claim = store.claim(conversation)
    except OwnedByAnotherProcess:
        return False
    return claim.head == len(rows(store, conversation))
