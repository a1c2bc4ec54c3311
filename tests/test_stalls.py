"""What was acknowledged over a network that stalls, cuts and swallows is kept, once, in order."""

from __future__ import annotations

import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from agent_context import AgentContextError, Append, Host, Message, Messages
from agent_context.errors import AskTimeout, StoreError
from agent_context.stores.postgres import PostgresStore
from agent_context_backends.scripted import ScriptedBackend
from tests.support.postgres import new_schema, place
from tests.support.proxy import Proxy
from tests.support.waiting import join

psycopg = pytest.importorskip("psycopg")

TROUBLES = int(os.environ.get("AGENT_CONTEXT_SOAK", "10"))
TALKS = 20
WRITERS = 8

logger = logging.getLogger(__name__)


@contextmanager
def network() -> Generator[tuple[Proxy, str]]:
    with psycopg.connect(place(), autocommit=True) as admin, new_schema(admin) as schema:
        info = admin.info
        parameters = info.get_parameters() | {"password": info.password}
        with Proxy(info.host, info.port, parameters) as proxy:
            yield proxy, schema


class Writer(Thread):
    """Appends to some talks, one word after the other, and asks again with the same key."""

    def __init__(self, host: Host, names: list[str], stop: Event) -> None:
        super().__init__()
        self.host, self.names, self.stop = host, names, stop
        self.acknowledged: dict[str, list[str]] = defaultdict(list)
        self.refused = 0

    def run(self) -> None:
        for number in range(1_000_000):
            if self.stop.is_set():
                return
            for name in self.names:
                self._say(name, f"{name} {number}")

    def _say(self, name: str, text: str) -> None:
        while True:
            try:
                self.host.get(name).ask(Append(Message.user(text), key=text), timeout=5.0)
            except (AskTimeout, StoreError):
                self.refused += 1
            else:
                self.acknowledged[name].append(text)
                return


def make_trouble(proxy: Proxy, luck: random.Random) -> None:
    time.sleep(luck.uniform(0.05, 0.5))  # they write undisturbed
    match luck.choice(("stall", "stall", "cut", "swallow")):
        case "stall":
            proxy.stall()
            time.sleep(luck.uniform(0.05, 4.0))  # shorter and longer than the store waits
            proxy.flow()
        case "cut":
            proxy.cut()
        case _:
            proxy.swallow_next()


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.timeout(120 + 15 * TROUBLES)
def test_a_network_that_stalls_and_cuts_loses_and_doubles_nothing() -> None:
    luck, stop = random.Random(1), Event()
    names = [f"c{number}" for number in range(TALKS)]
    with network() as (proxy, schema):
        store = PostgresStore(proxy.dsn, schema=schema, timeout=1.0, lease=10.0)
        with Host(store, ScriptedBackend()) as host:
            writers = [Writer(host, names[number::WRITERS], stop) for number in range(WRITERS)]
            for each in writers:
                each.start()
            for _ in range(TROUBLES):
                make_trouble(proxy, luck)
            stop.set()
            join(*writers, timeout=120)
        acknowledged = {name: said for each in writers for name, said in each.acknowledged.items()}
        kept = read_all(place(), schema, names)

    refused = sum(each.refused for each in writers)
    total = sum(map(len, acknowledged.values()))
    logger.info("%d troubles: %d acknowledged, %d refused meanwhile", TROUBLES, total, refused)
    assert kept == acknowledged
    assert total > TROUBLES


def read_all(dsn: str, schema: str, names: list[str]) -> dict[str, list[str]]:
    """What another process finds."""
    store = PostgresStore(dsn, schema=schema, lease=1.0)
    try:
        with Host(store, ScriptedBackend()) as host:
            return {name: texts(host, name) for name in names}
    finally:
        store.close()


def texts(host: Host, name: str) -> list[str]:
    end = time.monotonic() + 60
    while True:
        try:
            return [message.text for message in host.get(name, patience=20).ask(Messages())]
        except AgentContextError:
            assert time.monotonic() < end
