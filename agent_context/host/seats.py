"""A conversation's place at a host, and what is said to one that may have to be woken first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import pykka

from agent_context.conversation.seat import Seat, Unread
from agent_context.conversation.settings import Settings
from agent_context.events import ChangeEvent
from agent_context.ref import ContextRef
from agent_context.runtime import Delivery, Failed, Reply
from agent_context.runtime.internals import Envelope
from agent_context.runtime.mailbox import move

if TYPE_CHECKING:
    from agent_context.host.house import House

__all__ = ["Call", "HostSeat", "Moved"]

logger = logging.getLogger(__name__)


class Call(Protocol):
    """Something for a conversation, which waits until the conversation is there."""

    def make(self, ref: ContextRef) -> bool:
        """Say it; False if the conversation has ended, and heard nothing of it."""
        ...

    def fail(self, error: BaseException) -> None:
        """The conversation can't be had."""
        ...


class Moved:
    """What a conversation did not get to read before it ended."""

    __slots__ = ("_unread",)

    def __init__(self, unread: Envelope[Any]) -> None:
        self._unread = unread

    def make(self, ref: ContextRef) -> bool:
        return move(self._unread, ref.actor_ref)

    def fail(self, error: BaseException) -> None:
        if self._unread.reply_to is not None:
            self._unread.reply_to.set(Failed(error))
        else:
            logger.error("%s was not told: %s", type(self._unread.message).__name__, error)


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

    def ended(self, settings: Settings, unread: Unread, released: Reply[None]) -> None:
        self._house.ended(self, settings, [Moved(each) for each in unread], released)

    def branch(self, conversation_id: str, launch: Callable[[Seat], ContextRef]) -> ContextRef:
        return self._house.branch(conversation_id, launch)
