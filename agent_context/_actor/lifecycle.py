"""What a conversation and its host know of each other, from start to end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from agent_context._actor.config import ActorConfig
from agent_context._runtime import Reply, SubscriberQueue
from agent_context._runtime._pykka import Envelope
from agent_context.events import ChangeEvent
from agent_context.ref import ContextRef

__all__ = ["ActivityStats", "GetActivity", "HostPort", "Passivate", "UnreadEnvelopes"]

UnreadEnvelopes = Sequence[Envelope[Any]]


class ActivityStats(Struct, frozen=True):
    """How busy a conversation is."""

    running: int = 0
    waiting: int = 0
    compressions: int = 0
    lookups: int = 0
    """Of what was asked with a key."""
    subscribers: int = 0

    @property
    def busy(self) -> bool:
        return any((self.running, self.waiting, self.compressions, self.lookups))


class GetActivity(Struct, frozen=True):
    """Asks a conversation for its `ActivityStats`."""


class Passivate(Struct, frozen=True):
    """Asks a conversation to stop, unless it is busy, has subscribers or was used in the meantime.

    One whose host is `retiring` ends whoever listens, and as soon as it isn't busy any more.
    """

    unused_since: float = float("inf")


class HostPort(ABC):
    """What a conversation tells its host."""

    __slots__ = ("draining", "last_used")

    def __init__(self) -> None:
        self.last_used = 0.0
        """When it was last used, on the monotonic clock; the conversation keeps it right."""
        self.draining = False

    @abstractmethod
    def subscribers(self) -> Sequence[SubscriberQueue[ChangeEvent]]:
        """The subscribers to every conversation of the host."""

    @abstractmethod
    def on_passivation_refused(self) -> None:
        """The conversation refused to stop."""

    @abstractmethod
    def on_stopped(
        self, config: ActorConfig, unread: UnreadEnvelopes, released: Reply[None]
    ) -> None:
        """The conversation has stopped; others may claim it once `released` settles.

        `unread` is what was asked and told and not looked at: it is the host's to have done.
        """

    @abstractmethod
    def register_fork(
        self, conversation_id: str, launch: Callable[[HostPort], ContextRef]
    ) -> ContextRef:
        """Give a fork a host of its own, launch it there and return the host's ref to it."""
