"""pykka's registry of live actors, without its search through a list for each stop."""

from collections.abc import Iterator
from threading import RLock
from typing import Any, cast

from pykka import ActorRef, ActorRegistry

from agent_context._runtime.fork_safety import on_fork_child


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
