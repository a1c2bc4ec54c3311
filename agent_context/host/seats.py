"""A conversation's place at a host, and what is said to one that may have to be woken first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import pykka

from agent_context.conversation.seat import Seat
from agent_context.conversation.settings import Settings
from agent_context.events import ChangeEvent
from agent_context.ref import ContextRef
from agent_context.runtime import Delivery, Reply

if TYPE_CHECKING:
    from agent_context.host.house import House

__all__ = ["Call", "HostSeat"]


class Call(Protocol):
    """Something for a conversation, which waits until the conversation is there."""

    def make(self, ref: ContextRef) -> bool:
        """Say it; False if the conversation has ended, and heard nothing of it."""
        ...

    def fail(self, error: BaseException) -> None:
        """The conversation can't be had."""
        ...


class HostSeat(Seat):
    """From the wish for a conversation to the moment when others may have it.

    All but `used`, `retiring` and `on_change` is guarded by the lock of the house.
    """

    __slots__ = (
        "_house",
        "asked",
        "backlog",
        "id",
        "next",
        "on_change",
        "ref",
        "released",
        "usual",
    )

    def __init__(self, house: House, conversation_id: str) -> None:
        super().__init__()
        self._house = house
        self.id = conversation_id
        self.ref: ContextRef | None = None
        self.backlog: list[Call] | None = []
        """What waits for the conversation to be there; None once it is."""
        self.asked = False
        """Whether it is asked to end, and has not said that it stays."""
        self.released = False
        """Whether it has ended: nobody hears what is said there."""
        self.next: HostSeat | None = None
        """Who takes its place when the store knows that it is free."""
        self.usual: Settings | None = None
        """The settings that it would have if it were activated anew."""
        self.on_change: Delivery[ChangeEvent] | None = None

    @property
    def live(self) -> bool:
        return self.backlog is None and not self.released

    @property
    def actor_ref(self) -> pykka.ActorRef[Any]:
        return cast("ContextRef", self.ref).actor_ref

    def listeners(self) -> Sequence[Delivery[ChangeEvent]]:
        everywhere = self._house.listeners
        return everywhere if self.on_change is None else (*everywhere, self.on_change)

    def stayed(self) -> None:
        self._house.stayed(self)

    def ended(self, settings: Settings, released: Reply[None] | None = None) -> None:
        self._house.ended(self, settings, released)

    def branch(self, conversation_id: str, launch: Callable[[Seat], ContextRef]) -> ContextRef:
        return self._house.branch(conversation_id, launch)
