"""`ContextRef`: the typed reference to a conversation's actor."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import pykka
from msgspec import Struct

from agent_context._context.zones import Zones
from agent_context._runtime import Reply, in_scope, peek_idle, post
from agent_context.errors import (
    AskTimeout,
    ConversationClosed,
    DeadlockError,
    MailboxFull,
    UsageError,
)
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.stream import Stream, TextStream

__all__ = ["Ask", "Command", "ContextRef", "Query"]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Ask(Struct, Generic[R_co], frozen=True):
    """A message to a conversation whose reply is an `R_co`: a `Command` or a `Query`."""

    default_timeout: ClassVar[float] = 5.0
    """Seconds that an ask waits if it isn't told how long."""

    def timeout_for(self, turn_timeout: float) -> float:
        """Seconds that this ask waits; `turn_timeout` is the conversation's own for turns."""
        del turn_timeout
        return self.default_timeout

    def cancel_target(self) -> object:
        """What is cancelled when nobody waits for the reply any more."""
        return self


class Command(Ask[R_co], frozen=True):
    """An ask that may change the conversation."""


class Query(Ask[R_co], frozen=True):
    """An ask that only reads: it is answered from what is there, also while a turn runs."""


class AskCancelled(Struct, frozen=True):
    """Tells the actor that nobody waits for the answer to `asked` any more."""

    asked: object


class Shutdown(Struct, frozen=True):
    """Asks the actor to stop; the reply lists futures, one for each subscriber's last event."""


class ReadZones(Struct, frozen=True):
    """Asks for the zones as a value: O(1), whatever their length."""


class Channel(ABC):
    """How asks reach one conversation, wherever it is. A `ContextRef` is the same for all."""

    __slots__ = ()

    @property
    @abstractmethod
    def actor_ref(self) -> pykka.ActorRef[Any]:
        """The pykka reference of the actor that has the conversation now."""

    @abstractmethod
    def post(self, message: Ask[Any] | ReadZones) -> Reply[Any]:
        """Deliver `message`; the reply fails with `pykka.ActorDeadError` if nobody takes it."""

    @abstractmethod
    def tell(self, message: Ask[Any]) -> None:
        """Deliver `message` without a reply. Raises `pykka.ActorDeadError`."""

    @abstractmethod
    def cancel(self, message: Ask[Any]) -> None:
        """Say that nobody waits for the reply to `message` any more."""

    @abstractmethod
    def stop(self, timeout: float) -> Sequence[Reply[None]]:
        """Stop the conversation; returns futures that settle once its subscribers have every event.

        Raises `pykka.Timeout`.
        """


class LocalChannel(Channel):
    """To an actor of this process."""

    __slots__ = ("_actor_ref",)

    def __init__(self, actor_ref: pykka.ActorRef[Any]) -> None:
        self._actor_ref = actor_ref

    @property
    def actor_ref(self) -> pykka.ActorRef[Any]:
        return self._actor_ref

    def post(self, message: Ask[Any] | ReadZones) -> Reply[Any]:
        return deliver(self._actor_ref, message)

    def tell(self, message: Ask[Any]) -> None:
        self._actor_ref.tell(message)

    def cancel(self, message: Ask[Any]) -> None:
        post(self._actor_ref, AskCancelled(message.cancel_target()))

    def stop(self, timeout: float) -> Sequence[Reply[None]]:
        end = time.monotonic() + timeout
        flushed: Sequence[Reply[None]] = ()
        with contextlib.suppress(pykka.ActorDeadError, MailboxFull):
            asked = cast("Reply[Any]", self._actor_ref.ask(Shutdown(), block=False))
            flushed = asked.get(timeout=timeout)
        self._actor_ref.stop(timeout=max(0.0, end - time.monotonic()))
        return flushed


_TurnCommands = tuple[Callable[..., Ask[Completion]], Callable[..., Ask[Stream]]]


class ContextRef:
    """Talks to one conversation. Cheap, and safe to use from any thread and any event loop.

    Leaving a `with` or `async with` block stops the conversation.
    """

    __slots__ = ("channel", "id", "turn_timeout")

    turn_commands: ClassVar[_TurnCommands]
    """`Send` and `SendStream`, which know this class: `agent_context.protocol` says it here."""

    def __init__(self, channel: Channel, conversation_id: str, *, turn_timeout: float) -> None:
        self.channel = channel
        """How asks get there; for this package."""
        self.id = conversation_id
        self.turn_timeout = turn_timeout
        """Seconds that a turn takes at most, if its options don't say otherwise."""

    def __repr__(self) -> str:
        return f"<conversation {self.id}>"

    @property
    def actor_ref(self) -> pykka.ActorRef[Any]:
        """The pykka reference; its own `ask` and `tell` take the same messages, untyped."""
        return self.channel.actor_ref

    def ask(self, message: Ask[R], *, timeout: float | None = None) -> R:
        """Send `message` and wait for its reply.

        `timeout` is in seconds; None uses the default for the kind of message: a few seconds for
        reads and edits, a little more than the turn's own deadline for `Send` and `Compress`.
        Whoever interrupts the wait (Ctrl-C) cancels the turn that the message began.

        Raises what went wrong; `AskTimeout` when time is up, `ConversationClosed` after a stop,
        `MailboxFull` when too many messages wait, `DeadlockError` from inside a callback,
        `UsageError` for what is no message.
        """
        reply = submit(self, message)
        seconds = message.timeout_for(self.turn_timeout) if timeout is None else timeout
        try:
            return reply.get(timeout=seconds)
        except pykka.Timeout:
            raise self._timeout_error(message, seconds) from None
        except pykka.ActorDeadError:
            raise self._closed_error() from None
        except (KeyboardInterrupt, SystemExit):
            self.channel.cancel(message)
            raise

    async def aask(self, message: Ask[R], *, timeout: float | None = None) -> R:
        """`ask` for event loops: never blocks the loop that it runs on.

        Cancelling the awaiting task cancels the turn that the message began, if it began one.
        """
        reply = submit(self, message)
        seconds = message.timeout_for(self.turn_timeout) if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                return await reply
        except TimeoutError:
            if reply.done():
                raise
            raise self._timeout_error(message, seconds) from None
        except pykka.ActorDeadError:
            raise self._closed_error() from None
        except asyncio.CancelledError:
            self.channel.cancel(message)
            raise

    def tell(self, message: Ask[Any]) -> None:
        """Send `message` and don't wait. What goes wrong is logged and, for turns, announced."""
        _check_ask(message)
        try:
            self.channel.tell(message)
        except pykka.ActorDeadError:
            raise self._closed_error() from None

    def say(
        self,
        said: str | Message,
        /,
        options: SendOptions | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """Say something as the user and wait for the answer: `ask(Send(said, options))`."""
        return self.ask(self._say(said, options, key), timeout=timeout)

    async def asay(
        self,
        said: str | Message,
        /,
        options: SendOptions | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Completion:
        """`say` for event loops."""
        return await self.aask(self._say(said, options, key), timeout=timeout)

    def stream(
        self,
        said: str | Message,
        /,
        options: SendOptions | None = None,
        *,
        key: str | None = None,
    ) -> TextStream:
        """Say something as the user and iterate over the words of the answer.

        `for` and `async for` both do; the turn begins with the first word that is asked for. What
        else arrives, such as reasoning, `ask(SendStream(said))` has.
        """
        message = self.turn_commands[1](said, options or SendOptions(), key=key)
        return TextStream(partial(self.ask, message), partial(self.aask, message))

    def _say(
        self, said: str | Message, options: SendOptions | None, key: str | None
    ) -> Ask[Completion]:
        return self.turn_commands[0](said, options or SendOptions(), key=key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.astop()

    async def astop(self, *, timeout: float = 10.0) -> None:
        """`stop` for event loops."""
        await asyncio.to_thread(self.stop, timeout=timeout)

    def stop(self, *, timeout: float = 10.0) -> None:
        """Stop the conversation and wait for it, at most `timeout` seconds. Harmless if stopped.

        A turn in progress is cancelled by its abort policy; what waits is answered with
        `ConversationClosed`. Subscribers get every event, unless they take longer than that.
        Raises `AskTimeout`.
        """
        end = time.monotonic() + timeout
        try:
            flushed = self.channel.stop(timeout)
        except pykka.Timeout:
            raise AskTimeout(f"{self!r} did not stop within {timeout} seconds") from None
        if not in_scope(self.id):
            _wait_for_all(flushed, end)

    def _timeout_error(self, message: Ask[Any], seconds: float) -> AskTimeout:
        return AskTimeout(f"{self!r} gave no answer to {type(message).__name__} in {seconds} s")

    def _closed_error(self) -> ConversationClosed:
        return ConversationClosed(f"{self!r} was stopped")


# For this package alone, and so no methods of what users hold.


def submit(ref: ContextRef, message: Ask[R]) -> Reply[R]:
    """Post `message` without waiting; the reply may be awaited on any event loop.

    It fails with `pykka.ActorDeadError` if the conversation was stopped.
    """
    _check_ask(message)
    if in_scope(ref.id):
        raise DeadlockError(
            f"{type(message).__name__} was asked from inside a callback of {ref!r}, "
            "which has to return first: use tell, or ask from another thread"
        )
    return ref.channel.post(message)


def deliver(actor_ref: pykka.ActorRef[Any], message: Ask[Any] | ReadZones) -> Reply[Any]:
    """Ask an actor of this process, but for what it can tell without being asked."""
    if isinstance(message, ReadZones) and (zones := peek_idle(actor_ref)) is not None:
        known: Reply[Any] = Reply()
        known.set(zones)
        return known
    return cast("Reply[Any]", actor_ref.ask(message, block=False))


async def read_zones(ref: ContextRef) -> Zones:
    """What the conversation holds now, as a value: O(1), whatever its length."""
    try:
        return cast("Zones", await ref.channel.post(ReadZones()))
    except pykka.ActorDeadError:
        raise ConversationClosed(f"{ref!r} was stopped") from None


def _check_ask(message: object) -> None:
    if isinstance(message, Ask):
        return
    given = type(message).__name__
    if isinstance(message, type) and issubclass(message, Ask):
        name = cast("type[object]", message).__name__
        raise UsageError(f"{name} is a class: ask {name}(...)")
    hint = f": Send(messages=[Message.user({message!r})])" if isinstance(message, str) else ""
    raise UsageError(
        f"a conversation is asked with the messages of agent_context.protocol, "
        f"not with {given}{hint}"
    )


def _wait_for_all(flushed: Sequence[Reply[None]], end: float) -> None:
    for mark in flushed:
        with contextlib.suppress(pykka.Timeout):
            mark.get(timeout=max(0.0, end - time.monotonic()))
