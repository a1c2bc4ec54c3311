"""Conversations with scripted models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Condition
from typing import Any, TypeVar

import pykka
import pytest

from agent_context import AgentContext, ChangeEvent, ContextRef
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import ScriptedBackend, ScriptItem
from tests.support.postgres import new_store
from tests.support.waiting import WAIT

Talk = Callable[..., ContextRef]
E = TypeVar("E")


@pytest.fixture
def talk() -> Talk:
    """Starts a conversation with a model that answers from a script."""

    def start(script: Iterable[ScriptItem] | ScriptedBackend = (), **config: Any) -> ContextRef:
        backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script)
        return AgentContext.start(backend, **config)

    return start


class Seen:
    """A subscriber that tests can wait for."""

    def __init__(self) -> None:
        self.events: list[ChangeEvent] = []
        self._arrived = Condition()

    def __call__(self, event: ChangeEvent) -> None:
        with self._arrived:
            self.events.append(event)
            self._arrived.notify_all()

    def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        """The events of one kind, once there are as many."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.of(kind)) >= count, WAIT), self.names
            return self.of(kind)

    def wait_until_last_is(self, kind: type[E]) -> None:
        """Wait until the newest event is of this kind."""
        with self._arrived:
            arrived = self._arrived.wait_for(
                lambda: bool(self.events) and isinstance(self.events[-1], kind), WAIT
            )
            assert arrived, self.names

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Each kind of store, with nothing in it."""
    if request.param == "postgres":
        with new_store() as postgres:
            yield postgres
        return
    kept = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "kept.db")
    yield kept
    pykka.ActorRegistry.stop_all(timeout=10)
    kept.close()
