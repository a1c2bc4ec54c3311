"""A conversation's slot in a host, and messages that wait for its activation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import pykka

from agent_context._actor.config import ActorConfig
from agent_context._actor.lifecycle import HostPort, UnreadEnvelopes
from agent_context._runtime import Failure, Reply, SubscriberQueue
from agent_context._runtime._pykka import Envelope
from agent_context._runtime.mailbox import forward
from agent_context.events import ChangeEvent
from agent_context.ref import ContextRef

if TYPE_CHECKING:
    from agent_context.host.activation import ActivationRegistry

__all__ = ["PendingDelivery", "RedeliveredEnvelope", "Slot"]

logger = logging.getLogger(__name__)


class PendingDelivery(Protocol):
    """A message that waits until its conversation is active."""

    def deliver(self, ref: ContextRef) -> bool:
        """Deliver it; False if the conversation has ended without seeing it."""
        ...

    def fail(self, error: BaseException) -> None:
        """Fail it: the conversation can't be activated."""
        ...


class RedeliveredEnvelope:
    """A message that a conversation had not read when it ended."""

    __slots__ = ("_unread",)

    def __init__(self, unread: Envelope[Any]) -> None:
        self._unread = unread

    def deliver(self, ref: ContextRef) -> bool:
        return forward(self._unread, ref.actor_ref)

    def fail(self, error: BaseException) -> None:
        if self._unread.reply_to is not None:
            self._unread.reply_to.set(Failure(error))
        else:
            logger.error("%s was not told: %s", type(self._unread.message).__name__, error)


class Slot(HostPort):
    """A conversation's place in the host, from the first request until it is released.

    All but `used`, `retiring` and `on_change` is guarded by the lock of the registry.
    """

    __slots__ = (
        "_registry",
        "default_config",
        "id",
        "on_change",
        "passivation_requested",
        "pending",
        "ref",
        "released",
        "successor",
    )

    def __init__(self, registry: ActivationRegistry, conversation_id: str) -> None:
        super().__init__()
        self._registry = registry
        self.id = conversation_id
        self.ref: ContextRef | None = None
        self.pending: list[PendingDelivery] | None = []
        """What waits for the conversation to be there; None once it is."""
        self.passivation_requested = False
        """Whether it is asked to end, and has not said that it stays."""
        self.released = False
        """Whether it has ended: nobody hears what is said there."""
        self.successor: Slot | None = None
        """Who takes its place when the store knows that it is free."""
        self.default_config: ActorConfig | None = None
        """The settings that it would have if it were activated anew."""
        self.on_change: SubscriberQueue[ChangeEvent] | None = None

    @property
    def is_active(self) -> bool:
        return self.pending is None and not self.released

    @property
    def is_waking(self) -> bool:
        """Whether it is awake, and what waited for that is being handed to it."""
        return self.ref is not None and self.pending is not None and not self.released

    @property
    def actor_ref(self) -> pykka.ActorRef[Any]:
        return cast("ContextRef", self.ref).actor_ref

    def subscribers(self) -> Sequence[SubscriberQueue[ChangeEvent]]:
        everywhere = self._registry.subscribers
        return everywhere if self.on_change is None else (*everywhere, self.on_change)

    def on_passivation_refused(self) -> None:
        self._registry.on_passivation_refused(self)

    def on_stopped(
        self, config: ActorConfig, unread: UnreadEnvelopes, released: Reply[None]
    ) -> None:
        self._registry.on_stopped(
            self, config, [RedeliveredEnvelope(each) for each in unread], released
        )

    def register_fork(
        self, conversation_id: str, launch: Callable[[HostPort], ContextRef]
    ) -> ContextRef:
        return self._registry.register_fork(conversation_id, launch)
