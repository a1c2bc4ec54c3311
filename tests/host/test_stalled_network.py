"""A network to PostgreSQL that stalls with its sockets open, and what a host does meanwhile."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from agent_context import AgentContextError, Append, Host, Message, Messages
from agent_context.errors import AskTimeout, StoreError
from agent_context.stores.postgres import PostgresStore
from agent_context_backends.scripted import ScriptedBackend
from tests.support.postgres import new_schema, place
from tests.support.proxy import Proxy
from tests.support.waiting import WAIT

psycopg = pytest.importorskip("psycopg")

TIMEOUT = 1.0
"""Seconds that the store's server may take."""


@pytest.fixture
def schema() -> Iterator[str]:
    with psycopg.connect(place(), autocommit=True) as admin, new_schema(admin) as schema:
        yield schema


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with psycopg.connect(place()) as connection:
        info = connection.info
        address = (info.host, info.port, info.get_parameters() | {"password": info.password})
    with Proxy(*address) as proxy:
        yield proxy


def say(host: Host, text: str, *, until: float) -> None:
    """Say it again and again, until it is kept."""
    while True:
        try:
            host.get("c").ask(Append(Message.user(text), key=text), timeout=5.0)
        except (AskTimeout, StoreError):
            assert time.monotonic() < until, "the conversation did not come back"
        else:
            return


def test_conversations_are_alive_again_when_the_network_is(proxy: Proxy, schema: str) -> None:
    store = PostgresStore(proxy.dsn, schema=schema, timeout=TIMEOUT, lease=2.0)
    with Host(store, ScriptedBackend()) as host:
        say(host, "before", until=time.monotonic() + WAIT)
        proxy.stall()
        with pytest.raises(AgentContextError):
            host.get("c").ask(Append(Message.user("during"), key="during"), timeout=15.0)

        proxy.flow()
        say(host, "during", until=time.monotonic() + WAIT)
        say(host, "after", until=time.monotonic() + WAIT)

        said = [message.text for message in host.get("c").ask(Messages())]
    assert said == ["before", "during", "after"]


def test_a_host_ends_although_the_network_stalls(proxy: Proxy, schema: str) -> None:
    store = PostgresStore(proxy.dsn, schema=schema, timeout=TIMEOUT)
    host = Host(store, ScriptedBackend())
    say(host, "before", until=time.monotonic() + WAIT)
    proxy.stall()
    host.get("c").tell(Append(Message.user("lost")))

    begun = time.monotonic()
    host.drain(timeout=2.0)

    assert time.monotonic() - begun < 30


PROGRAM = """
import sys
from threading import Event
from agent_context import Append, Host, Message
from agent_context.stores.postgres import PostgresStore
from agent_context_backends.scripted import ScriptedBackend

host = Host(PostgresStore(sys.argv[1], schema=sys.argv[2], timeout=1.0), ScriptedBackend())
host.install_signal_handlers(timeout=2.0)
refs = [host.get(f"c{number}") for number in range(20)]
for ref in refs:
    ref.ask(Append(Message.user("hi")))
print("ready", flush=True)
sys.stdin.readline()
for ref in refs:
    ref.tell(Append(Message.user("lost")))
print("told", flush=True)
Event().wait(120)
"""


def test_a_process_that_is_told_to_end_does_so_although_the_network_stalls(
    proxy: Proxy, schema: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, proxy.dsn, schema]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        proxy.stall()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "told\n"
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT)

    assert time.monotonic() - begun < 30
    assert process.returncode == -signal.SIGTERM
