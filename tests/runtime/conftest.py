from collections.abc import Iterator
from itertools import count
from threading import Event, Thread

import pytest
from pykka import Actor, ActorRef, ActorRegistry

from agent_context._runtime import ErrorBoundary, IoThread, PoolActor
from tests.support.waiting import WAIT, wait_for


class Gate:
    """A message whose handling begins and ends when the test says so."""

    def __init__(self) -> None:
        self.entered = Event()
        self.opened = Event()

    def pass_through(self) -> None:
        self.entered.set()
        wait_for(self.opened)


def refuse_threads(monkeypatch: pytest.MonkeyPatch, times: float = float("inf")) -> None:
    """Start no more threads, as a system at its limit does; after so many tries it starts them."""
    start, tries = Thread.start, count(1)

    def refuse(thread: Thread) -> None:
        if next(tries) <= times:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", refuse)


class Recorder(Actor):
    """Answers a callable with its result, anything else with itself; keeps what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[object] = []

    def on_receive(self, message: object) -> object:
        self.got.append(message)
        if isinstance(message, Gate):
            message.pass_through()
        return message() if callable(message) else message


class Plain(Recorder, PoolActor):
    pass


class Guarded(ErrorBoundary, Recorder, PoolActor):
    pass


@pytest.fixture
def plain() -> type[Recorder]:
    return Plain


@pytest.fixture
def guarded() -> type[Recorder]:
    return Guarded


@pytest.fixture
def ref(guarded: type[Recorder]) -> ActorRef[Recorder]:
    return guarded.start()


@pytest.fixture(autouse=True)
def _stop_all() -> Iterator[None]:
    yield
    ActorRegistry.stop_all(timeout=WAIT)


@pytest.fixture
def io() -> Iterator[IoThread]:
    loop = IoThread()
    yield loop
    assert loop.shutdown(WAIT)
