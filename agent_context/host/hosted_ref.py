"""How a conversation of a host is talked to: it is woken for what is said to it."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import pykka

from agent_context._runtime import Deferred, Failure, Reply, post
from agent_context.protocol import Ask, Compress, Fork, Send, SendStream
from agent_context.ref import AskCancelled, ContextRef, ReadZones

if TYPE_CHECKING:
    from agent_context.host.activation import ActivationRegistry

__all__ = ["ActivationWaiter", "HostedRef"]

logger = logging.getLogger(__name__)

_NEW_WORK: Final = (Send, SendStream, Compress, Fork)
"""What a host does not begin any more while it drains."""


class HostedRef(ContextRef):
    """Talks to one conversation of a host, also after it was parked: that wakes it.

    After `stop` this ref has ended; another one from the host wakes the conversation again.
    """

    __slots__ = ("_ended", "_registry")

    def __init__(self, ref: ContextRef, registry: ActivationRegistry) -> None:
        super().__init__(ref.actor_ref, ref.id, turn_timeout=ref.turn_timeout)
        self._registry = registry
        self._ended = False

    def tell(self, message: Ask[Any]) -> None:
        self._check(message)
        try:
            self.actor_ref.tell(message)
        except pykka.ActorDeadError:
            self._registry.deliver(self.id, _PendingTell(self, message))

    def stop(self, *, timeout: float = 10.0) -> None:
        end = time.monotonic() + timeout
        self._ended = True
        if (ref := self._registry.get_active(self.id, timeout)) is not None:
            ref.stop(timeout=max(0.0, end - time.monotonic()))

    def _post(self, message: Ask[Any] | ReadZones) -> Reply[Any]:
        self._check(message)
        reply = super()._post(message)
        if not (reply.done() and isinstance(reply.error(), pykka.ActorDeadError)):
            return reply
        later: Reply[Any] = Reply()
        self._registry.deliver(self.id, _PendingAsk(self, message, later))
        return later

    def _cancel_ask(self, message: Ask[Any]) -> None:
        if not post(self.actor_ref, AskCancelled(message)):
            # Behind the message itself, which waits for the conversation to be there.
            self._registry.deliver_if_active(self.id, _PendingTell(self, AskCancelled(message)))

    def _check(self, message: Ask[Any] | ReadZones) -> None:
        if self._ended:
            raise self._closed_error()
        if self._registry.draining and isinstance(message, _NEW_WORK):
            raise self._registry.draining_error()


class _PendingTell:
    __slots__ = ("_message", "_ref")

    def __init__(self, ref: HostedRef, message: Ask[Any] | AskCancelled) -> None:
        self._ref = ref
        self._message = message

    def deliver(self, ref: ContextRef) -> bool:
        try:
            ref.actor_ref.tell(self._message)
        except pykka.ActorDeadError:
            return False
        self._ref.actor_ref = ref.actor_ref
        return True

    def fail(self, error: BaseException) -> None:
        name = type(self._message).__name__
        logger.error("%s was not told to %r: %s", name, self._ref, error)


class _PendingAsk:
    __slots__ = ("_message", "_ref", "_reply")

    def __init__(self, ref: HostedRef, message: Ask[Any] | ReadZones, reply: Reply[Any]) -> None:
        self._ref = ref
        self._message = message
        self._reply = reply

    def deliver(self, ref: ContextRef) -> bool:
        reply: Any = ref.actor_ref.ask(self._message, block=False)
        if reply.done() and isinstance(reply.error(), pykka.ActorDeadError):
            return False
        self._ref.actor_ref = ref.actor_ref
        self._reply.set(Deferred(reply))
        return True

    def fail(self, error: BaseException) -> None:
        self._reply.set(Failure(error))


class ActivationWaiter:
    """Waits for a conversation to be there."""

    __slots__ = ("_registry", "reply")

    def __init__(self, registry: ActivationRegistry) -> None:
        self._registry = registry
        self.reply: Reply[HostedRef] = Reply()

    def deliver(self, ref: ContextRef) -> bool:
        self.reply.set(HostedRef(ref, self._registry))
        return True

    def fail(self, error: BaseException) -> None:
        self.reply.set(Failure(error))
