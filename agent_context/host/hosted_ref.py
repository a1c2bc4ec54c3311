"""References to a host's conversations: a message to a parked one activates it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pykka

from agent_context._runtime import Deferred, Failure, Reply, post
from agent_context.errors import ConversationClosed
from agent_context.protocol import Compress, Conditional, Fork, Send, SendStream
from agent_context.ref import Ask, AskCancelled, Channel, ContextRef, ReadZones, deliver

if TYPE_CHECKING:
    from agent_context.host.activation import ActivationRegistry

__all__ = ["ActivationWaiter", "HostedChannel", "to_hosted"]

logger = logging.getLogger(__name__)

_NEW_WORK: Final = (Send, SendStream, Compress, Fork)
"""Messages that start new work, which a draining host refuses."""


class HostedChannel(Channel):
    """The channel to a host's conversation; a message to a parked one activates it.

    After a stop this channel has ended; another one from the host wakes the conversation again.
    """

    __slots__ = ("_id", "_ref", "_registry", "_stopped")

    def __repr__(self) -> str:
        return f"<conversation {self._id}>"

    def __init__(self, ref: ContextRef, registry: ActivationRegistry) -> None:
        self._id = ref.id
        self._ref = ref.actor_ref
        self._registry = registry
        self._stopped = False

    @property
    def actor_ref(self) -> pykka.ActorRef[Any]:
        return self._ref

    def move_to(self, actor_ref: pykka.ActorRef[Any]) -> None:
        """The conversation was activated again, as this actor."""
        self._ref = actor_ref

    def post(self, message: Ask[Any] | ReadZones) -> Reply[Any]:
        self._check(message)
        reply = deliver(self._ref, message)
        if not (reply.done() and isinstance(reply.error(), pykka.ActorDeadError)):
            return reply
        later: Reply[Any] = Reply()
        self._registry.deliver(self._id, _PendingAsk(self, message, later))
        return later

    def tell(self, message: Ask[Any]) -> None:
        self._check(message)
        try:
            self._ref.tell(message)
        except pykka.ActorDeadError:
            self._registry.deliver(self._id, _PendingTell(self, message))

    def cancel(self, message: Ask[Any]) -> None:
        cancelled = AskCancelled(message.cancel_target())
        if not post(self._ref, cancelled):
            # Behind the message itself, which waits for the conversation to be there.
            self._registry.deliver_if_active(self._id, _PendingTell(self, cancelled))

    def stop(self, timeout: float) -> Sequence[Reply[None]]:
        end = time.monotonic() + timeout
        self._stopped = True
        ref = self._registry.get_active(self._id, timeout)
        return () if ref is None else ref.channel.stop(max(0.0, end - time.monotonic()))

    def _check(self, message: Ask[Any] | ReadZones) -> None:
        if self._stopped:
            raise ConversationClosed(f"<conversation {self._id}> was stopped")
        asked = message.command if isinstance(message, Conditional) else message
        if self._registry.draining and isinstance(asked, _NEW_WORK):
            raise self._registry.draining_error()


def to_hosted(ref: ContextRef, registry: ActivationRegistry) -> ContextRef:
    """A reference to the same conversation that keeps working after it is parked."""
    return ContextRef(HostedChannel(ref, registry), ref.id, turn_timeout=ref.turn_timeout)


class _PendingTell:
    __slots__ = ("_channel", "_message")

    def __init__(self, channel: HostedChannel, message: Ask[Any] | AskCancelled) -> None:
        self._channel = channel
        self._message = message

    def deliver(self, ref: ContextRef) -> bool:
        try:
            ref.actor_ref.tell(self._message)
        except pykka.ActorDeadError:
            return False
        self._channel.move_to(ref.actor_ref)
        return True

    def fail(self, error: BaseException) -> None:
        name = type(self._message).__name__
        logger.error("%s was not told to %r: %s", name, self._channel, error)


class _PendingAsk:
    __slots__ = ("_channel", "_message", "_reply")

    def __init__(
        self, channel: HostedChannel, message: Ask[Any] | ReadZones, reply: Reply[Any]
    ) -> None:
        self._channel = channel
        self._message = message
        self._reply = reply

    def deliver(self, ref: ContextRef) -> bool:
        reply: Any = ref.actor_ref.ask(self._message, block=False)
        if reply.done() and isinstance(reply.error(), pykka.ActorDeadError):
            return False
        self._channel.move_to(ref.actor_ref)
        self._reply.set(Deferred(reply))
        return True

    def fail(self, error: BaseException) -> None:
        self._reply.set(Failure(error))


class ActivationWaiter:
    """Waits until a conversation is active."""

    __slots__ = ("_registry", "reply")

    def __init__(self, registry: ActivationRegistry) -> None:
        self._registry = registry
        self.reply: Reply[ContextRef] = Reply()

    def deliver(self, ref: ContextRef) -> bool:
        self.reply.set(to_hosted(ref, self._registry))
        return True

    def fail(self, error: BaseException) -> None:
        self.reply.set(Failure(error))
