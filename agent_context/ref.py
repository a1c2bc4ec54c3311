"""A conversation as its users hold it: a typed reference to the actor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pykka
from msgspec import Struct

from agent_context._context.zones import Zones
from agent_context._runtime import Reply, in_scope, post
from agent_context.errors import AskTimeout, ConversationClosed, DeadlockError, MailboxFull

if TYPE_CHECKING:
    from agent_context.protocol import Ask

__all__ = ["AskCancelled", "ContextRef", "ReadZones", "Shutdown"]

R = TypeVar("R")


class AskCancelled(Struct, frozen=True):
    """Tells the actor that whoever asked this does not wait for the answer any more."""

    asked: object


class Shutdown(Struct, frozen=True):
    """Asks the actor to stop; the answer is what settles when each subscriber has had all."""


class ReadZones(Struct, frozen=True):
    """Asks for the zones as they are: a value that takes no time, whatever their length."""


class ContextRef:
    """Talks to one conversation. Cheap, and safe to use from any thread and any event loop."""

    __slots__ = ("actor_ref", "id", "turn_timeout")

    def __init__(
        self, actor_ref: pykka.ActorRef[Any], conversation_id: str, *, turn_timeout: float
    ) -> None:
        self.actor_ref = actor_ref
        """The pykka reference; its own `ask` and `tell` take the same messages, untyped."""
        self.id = conversation_id
        self.turn_timeout = turn_timeout
        """Seconds that a turn takes at most, if its options don't say otherwise."""

    def __repr__(self) -> str:
        return f"<conversation {self.id}>"

    def ask(self, message: Ask[R], *, timeout: float | None = None) -> R:
        """Say `message` and wait for what becomes of it.

        `timeout` is in seconds; None takes what suits the kind of message: a few seconds for
        reads and edits, a little more than the turn's own deadline for `Send` and `Compress`.
        Raises what went wrong; `AskTimeout` when time is up, `ConversationClosed` after a stop,
        `MailboxFull` when too much is waiting, `DeadlockError` from inside a callback.
        """
        self._refuse_inside(message)
        seconds = message.timeout_for(self.turn_timeout) if timeout is None else timeout
        try:
            return cast("R", self._post(message).get(timeout=seconds))
        except pykka.Timeout:
            raise self._timeout_error(message, seconds) from None
        except pykka.ActorDeadError:
            raise self._closed_error() from None

    async def aask(self, message: Ask[R], *, timeout: float | None = None) -> R:
        """`ask` for event loops: never blocks the loop that it runs on.

        Cancelling the awaiting task cancels the turn that the message began, if it began one.
        """
        self._refuse_inside(message)
        seconds = message.timeout_for(self.turn_timeout) if timeout is None else timeout
        reply = self._post(message)
        try:
            async with asyncio.timeout(seconds):
                return cast("R", await reply)
        except TimeoutError:
            if reply.done():
                raise
            raise self._timeout_error(message, seconds) from None
        except pykka.ActorDeadError:
            raise self._closed_error() from None
        except asyncio.CancelledError:
            self._cancel_ask(message)
            raise

    def submit(self, message: Ask[R]) -> Reply[R]:
        """Say `message` without waiting; the reply may be awaited on any loop, or left alone."""
        self._refuse_inside(message)
        return self._post(message)

    def abandon(self, message: Ask[Any]) -> None:
        """Say that nobody waits for the answer to `message` any more, which cancels its turn."""
        self._cancel_ask(message)

    async def zones(self) -> Zones:
        """What the conversation holds now, as a value. Takes no time that grows with length."""
        try:
            return cast("Zones", await self._post(ReadZones()))
        except pykka.ActorDeadError:
            raise self._closed_error() from None

    def tell(self, message: Ask[Any]) -> None:
        """Say `message` and don't wait. What goes wrong is logged and, for turns, announced."""
        try:
            self.actor_ref.tell(message)
        except pykka.ActorDeadError:
            raise self._closed_error() from None

    def stop(self, *, timeout: float = 10.0) -> None:
        """End the conversation and wait for it, at most `timeout` seconds. Harmless if ended.

        A turn in progress is cancelled by its abort policy; what waits is answered with
        `ConversationClosed`. Subscribers get every event, unless they take longer than that.
        """
        end = time.monotonic() + timeout
        waiting: list[Reply[None]] = []
        try:
            with contextlib.suppress(pykka.ActorDeadError, MailboxFull):
                asked = cast("Reply[Any]", self.actor_ref.ask(Shutdown(), block=False))
                waiting = asked.get(timeout=timeout)
            self.actor_ref.stop(timeout=max(0.0, end - time.monotonic()))
        except pykka.Timeout:
            raise AskTimeout(f"{self!r} did not stop within {timeout} seconds") from None
        if not in_scope(self.id):
            _await_all(waiting, end)

    def _post(self, message: Ask[Any] | ReadZones) -> Reply[Any]:
        try:
            return cast("Reply[Any]", self.actor_ref.ask(message, block=False))
        except pykka.ActorDeadError:
            raise self._closed_error() from None

    def _cancel_ask(self, message: Ask[Any]) -> None:
        post(self.actor_ref, AskCancelled(message))

    def _refuse_inside(self, message: Ask[Any]) -> None:
        if in_scope(self.id):
            raise DeadlockError(
                f"{type(message).__name__} was asked from inside a callback of {self!r}, "
                "which has to return first: use tell, or ask from another thread"
            )

    def _timeout_error(self, message: Ask[Any], seconds: float) -> AskTimeout:
        return AskTimeout(f"{self!r} gave no answer to {type(message).__name__} in {seconds} s")

    def _closed_error(self) -> ConversationClosed:
        return ConversationClosed(f"{self!r} was stopped")


def _await_all(waiting: list[Reply[None]], end: float) -> None:
    for mark in waiting:
        with contextlib.suppress(pykka.Timeout):
            mark.get(timeout=max(0.0, end - time.monotonic()))
