"""What this runtime uses of pykka beyond its documentation: all of it is here.

Unchanged since pykka 4.0. `scripts/pykka-suite` runs pykka's own tests on this runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Condition, Event, RLock
from typing import Any, cast

from pykka import ActorRef, ActorRegistry, messages
from pykka._envelope import Envelope  # pyright: ignore[reportPrivateUsage]

from agent_context._runtime.fork_safety import ForkLocal, on_fork_child

__all__ = ["ActorStop", "Envelope", "LightEvent", "find_actor", "install_fast_registry"]

ActorStop: type[object] = messages._ActorStop  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


# Waiting for an actor to stop is rare, so all flags share what it takes.
_any_set = ForkLocal(Condition)


class LightEvent(Event):
    """A `threading.Event` that is set once, and has no lock of its own."""

    # What `Event.__repr__` and `Event.isSet` look at.
    _flag = False

    def __init__(self) -> None:
        """Do not make the condition that an event has."""

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        condition = _any_set()
        with condition:
            self._flag = True
            condition.notify_all()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        condition = _any_set()
        with condition:
            return condition.wait_for(self.is_set, timeout)


class IndexedRefs:
    """Refs by URN in the order of their starts: as much of a list as the registry uses.

    It has no lock: the registry holds its own around every use.
    """

    __slots__ = ("_refs",)

    def __init__(self, refs: list[ActorRef[Any]]) -> None:
        self._refs = {ref.actor_urn: ref for ref in refs}

    def append(self, ref: ActorRef[Any]) -> None:
        self._refs[ref.actor_urn] = ref

    def remove(self, ref: ActorRef[Any]) -> None:
        del self._refs[ref.actor_urn]

    def get(self, urn: str) -> ActorRef[Any] | None:
        return self._refs.get(urn)

    def __contains__(self, ref: ActorRef[Any]) -> bool:
        return ref.actor_urn in self._refs

    def __iter__(self) -> Iterator[ActorRef[Any]]:
        return iter(self._refs.values())

    def __getitem__(self, part: slice) -> list[ActorRef[Any]]:
        return list(self._refs.values())[part]


class _Registry(ActorRegistry):
    """A subclass, for what the registry keeps to itself: its state stays the parent's."""

    @classmethod
    def install_bag(cls) -> IndexedRefs:
        refs: object = cls._actor_refs
        if isinstance(refs, IndexedRefs):
            return refs
        with cls._actor_refs_lock:
            bag = IndexedRefs(cls._actor_refs[:])
            ActorRegistry._actor_refs = cast("list[ActorRef[Any]]", bag)  # noqa: SLF001
        return bag

    @classmethod
    def forget_parent(cls) -> None:
        # The lock may have been held by a thread that does not exist in the child.
        ActorRegistry._actor_refs_lock = RLock()  # noqa: SLF001
        if isinstance(cast("object", cls._actor_refs), IndexedRefs):
            ActorRegistry._actor_refs = cast("list[ActorRef[Any]]", IndexedRefs([]))  # noqa: SLF001


def install_fast_registry() -> None:
    """Make register and unregister O(1) in the number of live actors; again is harmless."""
    _Registry.install_bag()


def find_actor(urn: str) -> ActorRef[Any] | None:
    """Look up a live actor in O(1), where `ActorRegistry.get_by_urn` compares them all."""
    return _Registry.install_bag().get(urn)


on_fork_child(_Registry.forget_parent)
