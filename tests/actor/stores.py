"""Stores that misbehave when they are told to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from agent_context.errors import StoreError
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Claim, Entry, ForkOrigin, Store, Write
from tests.support.waiting import wait_for

Answers = Sequence[StoreError | None]

__all__ = ["Failing", "Gate", "Held", "crash"]


def crash(store: Store) -> None:
    """Leave behind what a process leaves that is killed: nothing of it can write any more."""
    for about in store.conversations():
        store.claim(about.id)


class Failing(MemoryStore):
    """Does not do what it is told not to, and says why."""

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        """Refuses each write with a `StoreError`, and raises anything else."""
        self.claiming: StoreError | None = None
        self.finding: StoreError | None = None
        self.kept_anyway = False
        """The writes that it refuses are kept all the same."""
        self.spoilt: Callable[[Answers], Answers] = lambda answers: answers

    def write(self, batch: Sequence[Write]) -> Answers:
        if self.error is None:
            return self.spoilt(super().write(batch))
        if self.kept_anyway:
            super().write(batch)
        if isinstance(self.error, StoreError):
            return [self.error] * len(batch)
        raise self.error

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        if self.claiming is not None:
            raise self.claiming
        return super().claim(conversation_id, parent=parent)

    def find_by_key(self, conversation_id: str, key: str) -> Entry | None:
        if self.finding is not None:
            raise self.finding
        return super().find_by_key(conversation_id, key)


class Held(MemoryStore):
    """Has whoever writes, looks up a key, claims or releases wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.writing, self.finding, self.claiming, self.releasing = Gate(), Gate(), Gate(), Gate()

    def write(self, batch: Sequence[Write]) -> Answers:
        self.writing.pass_through()
        return super().write(batch)

    def find_by_key(self, conversation_id: str, key: str) -> Entry | None:
        self.finding.pass_through()
        return super().find_by_key(conversation_id, key)

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        self.claiming.pass_through()
        return super().claim(conversation_id, parent=parent)

    def release(self, conversation_id: str, epoch: int) -> None:
        self.releasing.pass_through()
        super().release(conversation_id, epoch)


class Gate:
    """Open, unless it is shut."""

    def __init__(self) -> None:
        self._opened = Event()
        self._opened.set()
        self.reached = Event()
        """Somebody came to it since it was shut."""

    def shut(self) -> None:
        self.reached.clear()
        self._opened.clear()

    def open(self) -> None:
        self._opened.set()

    def pass_through(self) -> None:
        self.reached.set()
        wait_for(self._opened)
