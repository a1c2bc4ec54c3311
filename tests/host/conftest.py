"""Hosts over stores in memory and in a file, with scripted models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from agent_context import Host
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Claim, ForkOrigin, Store
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Seen
from tests.support.waiting import WAIT, join, wait_for

Start = Callable[..., Host]


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "talks.db")
    yield made
    made.close()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a host that lets its store be, and drains it in the end."""
    hosts: list[Host] = []

    def begin(store: Store, backend: Any = None, **options: Any) -> Host:
        host = Host(store, backend or echo(), close_store=False, **options)
        hosts.append(host)
        return host

    yield begin
    for host in hosts:
        host.drain(timeout=0.1)


@pytest.fixture
def seen() -> Seen:
    return Seen()


class Gated(MemoryStore):
    """A store whose claims wait, and are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.claims = 0
        self.wanted = Event()
        self.gate = Event()
        self.gate.set()
        self.error: Exception | None = None

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        self.claims += 1
        self.wanted.set()
        wait_for(self.gate)
        if self.error is not None:
            raise self.error
        return super().claim(conversation_id, parent=parent)


def echo() -> ScriptedBackend:
    """A model that answers for ever."""

    def script() -> Iterator[Any]:
        while True:
            yield lambda request: f"re: {request.records[-1].message.text}"

    return ScriptedBackend(script())


def at_once(count: int, work: Callable[[int], object]) -> None:
    """Run `work` on as many threads, which begin together; raises what one of them raised."""
    barrier = Barrier(count, timeout=WAIT)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - it belongs to the test
            errors.append(error)

    threads = [Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    join(*threads)
    if errors:
        raise errors[0]


def until_parked(host: Host) -> None:
    """Wait until nobody is awake."""
    assert host._registry.wait_until_empty(WAIT), host.active_ids()
