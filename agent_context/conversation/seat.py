"""The side of a host that its conversations know: one seat for each, from its start to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from agent_context.conversation.settings import Settings
from agent_context.events import ChangeEvent
from agent_context.ref import ContextRef
from agent_context.runtime import Delivery, Reply
from agent_context.runtime.internals import Envelope

__all__ = ["Activity", "HowBusy", "Passivate", "Seat", "Unread"]

Unread = Sequence[Envelope[Any]]


class Activity(Struct, frozen=True):
    """What goes on in a conversation."""

    running: int = 0
    waiting: int = 0
    compressions: int = 0
    lookups: int = 0
    """Of what was asked with a key."""
    subscribers: int = 0

    @property
    def busy(self) -> bool:
        return any((self.running, self.waiting, self.compressions, self.lookups))


class HowBusy(Struct, frozen=True):
    """Asks a conversation for its `Activity`."""


class Passivate(Struct, frozen=True):
    """Asks a conversation to end, unless it is busy, has subscribers or was used since.

    One whose seat is `retiring` ends whoever listens, and as soon as it isn't busy any more.
    """

    unused_since: float = float("inf")


class Seat(ABC):
    """What a conversation tells its host."""

    __slots__ = ("retiring", "used")

    def __init__(self) -> None:
        self.used = 0.0
        """When it was last used, on the monotonic clock; the conversation keeps it right."""
        self.retiring = False

    @abstractmethod
    def listeners(self) -> Sequence[Delivery[ChangeEvent]]:
        """Who hears of the changes of all the host's conversations."""

    @abstractmethod
    def stayed(self) -> None:
        """It was asked to end and goes on."""

    @abstractmethod
    def ended(self, settings: Settings, unread: Unread, released: Reply[None]) -> None:
        """It has ended, with these settings. Others may have it once `released` is settled.

        `unread` is what was asked and told and not looked at: it is the host's to have done.
        """

    @abstractmethod
    def branch(self, conversation_id: str, launch: Callable[[Seat], ContextRef]) -> ContextRef:
        """Give a fork a seat of its own, launch it there and return the host's ref to it."""
