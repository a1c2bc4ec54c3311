"""The messages an actor has not handled yet: bounded, and answered even when it stops."""

from abc import ABC, abstractmethod
from collections import deque
from threading import RLock
from typing import Any, Final, cast

from pykka import ActorDeadError, ActorRef

from agent_context._runtime._pykka import ActorStop, Envelope
from agent_context._runtime.fork_safety import ProcessToken, forked_process_error
from agent_context._runtime.future import Reply
from agent_context.errors import MailboxFull

CAPACITY: Final = 10_000
_UNBOUNDED: Final = float("inf")


class Mailbox(ABC):
    """A pykka inbox with a bound, one reader and any number of writers."""

    __slots__ = ("_current", "_home", "_lock", "_messages", "_open", "capacity")

    def __init__(self) -> None:
        self._home = ProcessToken.current
        self._lock = RLock()  # a signal handler may tell what its thread is telling
        self._open = True
        self._current: Envelope[Any] | None = None
        # Made for the first message: an empty deque is larger than all the rest of an idle actor.
        self._messages: deque[Envelope[Any]] | None = None
        self.capacity = CAPACITY
        """Unread messages past which `put` raises `MailboxFull`; a stop always fits."""

    @abstractmethod
    def get(self) -> Envelope[Any]: ...

    @abstractmethod
    def _on_arrival(self) -> None:
        """Wake the reader; called with the lock held."""

    def peek_idle(self) -> object:
        """What the actor can tell at once: it is idle, and every message so far is handled."""
        return None

    def put(self, envelope: Envelope[Any], /) -> None:
        if self._home is not ProcessToken.current:
            raise forked_process_error()
        if not self._offer(envelope, self.capacity):
            _refuse(envelope)

    def post(self, envelope: Envelope[Any], /) -> bool:
        """Queue a message whatever the bound; False if the actor is gone."""
        return self._home is ProcessToken.current and self._offer(envelope, _UNBOUNDED)

    def empty(self) -> bool:
        return not self._messages

    def is_reply_expected(self) -> bool:
        """Tell whether the sender of the message being handled waits for a reply."""
        return self._current is not None and self._current.reply_to is not None

    def stop_unless_pending(self, *kinds: type) -> bool:
        """Stop the actor unless such messages wait; later ones are refused."""
        with self._lock:
            waiting = self._messages or deque()
            if not self._open or any(isinstance(each.message, kinds) for each in waiting):
                return False
            self._messages = waiting
            self._messages.append(Envelope(ActorStop()))
            self._open = False
            self._on_arrival()
        return True

    def drain(self, *kinds: type) -> list[Envelope[Any]]:
        """Accept no more messages, and hand back such ones unread."""
        with self._lock:
            self._open = False
            waiting = self._messages or deque()
            given = [each for each in waiting if isinstance(each.message, kinds)]
            self._messages = deque(each for each in waiting if not isinstance(each.message, kinds))
        return given

    def close(self) -> None:
        """Take no more messages: from now on, senders are told that the actor is dead.

        The last message is answered too, if an exception left the loop before its answer.
        """
        with self._lock:
            self._open = False
        reply = self._current.reply_to if self._current is not None else None
        self._current = None
        if isinstance(reply, Reply):
            reply.set_error(ActorDeadError("the actor stopped while it handled the message"))

    def _offer(self, envelope: Envelope[Any], bound: float) -> bool:
        with self._lock:
            if not self._open:
                return False
            fresh = deque[Envelope[Any]]() if self._messages is None else None
            # Nothing is called between these two: there a signal handler may tell something, too.
            if self._messages is None:
                self._messages = fresh
            messages = cast("deque[Envelope[Any]]", self._messages)
            if len(messages) >= bound and not isinstance(envelope.message, ActorStop):
                raise MailboxFull(f"{len(messages)} messages wait here, {bound} are allowed")
            messages.append(envelope)
            self._on_arrival()
        return True

    def _take(self, messages: deque[Envelope[Any]]) -> Envelope[Any]:
        self._current = messages.popleft()
        return self._current


def post(actor_ref: ActorRef[Any], message: object) -> bool:
    """Queue a message for an actor, whatever the bound; False if the actor is gone.

    For what must arrive whatever the load, such as the end of a turn. It keeps its place in the
    order. True says that the message waits, not that it will be handled: the actor may stop.
    """
    return forward(Envelope(message), actor_ref)


def peek_idle(actor_ref: ActorRef[Any]) -> object:
    """What an idle actor's `peek` returns, without two turns of threads; None if it is busy.

    It is as good as an answer: everything that was sent to the actor before is in it.
    """
    inbox = actor_ref.actor_inbox
    return inbox.peek_idle() if isinstance(inbox, Mailbox) else None


def forward(envelope: Envelope[Any], actor_ref: ActorRef[Any]) -> bool:
    """The same with what was sent to another actor that did not read it."""
    inbox = actor_ref.actor_inbox
    if not isinstance(inbox, Mailbox):
        raise TypeError(f"{actor_ref} has no mailbox of this runtime")
    return actor_ref.is_alive() and inbox.post(envelope)


def _refuse(envelope: Envelope[Any]) -> None:
    error = ActorDeadError("the actor stopped before it could take the message")
    if envelope.reply_to is None:
        raise error
    envelope.reply_to.set_exception((ActorDeadError, error, None))
