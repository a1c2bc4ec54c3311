"""Actors that share a few threads: an idle one costs under a kilobyte and no thread."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeGuard, cast

from pykka import Actor, Future

from agent_context._runtime._pykka import Envelope, LightEvent, install_fast_registry
from agent_context._runtime.executor import ElasticExecutor
from agent_context._runtime.fork_safety import ForkLocal, ProcessToken
from agent_context._runtime.future import Deferred, Failure, Reply
from agent_context._runtime.mailbox import CAPACITY, Mailbox

logger = logging.getLogger(__name__)


BATCH: Final = 32
"""Messages an actor handles before others have their turn."""

dispatcher = ForkLocal(lambda: ElasticExecutor("agent-context", size=2, keep=4, cap=64))


class _BatchDone(Exception):
    """Leaves pykka's receive loop, which takes its next message outside of any `try`."""


class BatchMailbox(Mailbox):
    """A mailbox that has itself read by the dispatcher, a batch at a time."""

    __slots__ = ("_left", "_peek", "_read_batch", "_scheduled")

    def __init__(self) -> None:
        super().__init__()
        self._left: float = 0
        self._read_batch: Callable[[], None] | None = None
        self._peek: Callable[[], object] | None = None
        # Until the actor starts, what arrives only waits.
        self._scheduled = True

    def start(
        self, first: Callable[[], None], each: Callable[[], None], peek: Callable[[], object]
    ) -> None:
        """Have `first` called now, `each` whenever messages wait, and `peek` by `peek_idle`."""
        # This reference keeps the actor alive: pykka's refs are weak, and here no thread holds it.
        self._read_batch, self._peek = each, peek
        dispatcher().submit(first)

    def peek_idle(self) -> object:
        if self._home is not ProcessToken.current:
            return None
        with self._lock:
            return None if self._scheduled or self._peek is None else self._peek()

    def start_batch(self) -> None:
        self._left = BATCH

    def get(self) -> Envelope[Any]:
        if self._left <= 0 or not self._messages:
            raise _BatchDone
        self._left -= 1
        return self._take(self._messages)

    def end_batch(self) -> None:
        """End a batch: go on later if there is more, else give back what is not needed."""
        self._current = None
        with self._lock:
            self._scheduled = bool(self._messages)
            if self._scheduled:
                self._schedule()
            else:
                self._messages = None

    def close(self) -> None:
        super().close()
        self._read_batch = self._peek = None
        self._left = float("inf")

    def _on_arrival(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._schedule()

    def _schedule(self) -> None:
        if self._read_batch is not None:
            dispatcher().submit(self._read_batch)


class PoolActor(Actor):
    """A `pykka.Actor` on the shared dispatcher.

    Handlers should not block. One that waits in `Reply.get` lends its thread to another actor;
    one that blocks on anything else does so after a twentieth of a second. 64 may wait at once.
    """

    mailbox_capacity: ClassVar[int] = CAPACITY
    """Unread messages past which `tell` and `ask` raise `MailboxFull`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._mailbox.capacity = self.mailbox_capacity
        self.actor_stopped = self._actor_ref.actor_stopped = LightEvent()

    @staticmethod
    def _create_actor_inbox() -> BatchMailbox:
        return BatchMailbox()

    @staticmethod
    def _create_future() -> Future[Any]:
        return Reply()

    @property
    def _mailbox(self) -> BatchMailbox:
        return cast("BatchMailbox", self.actor_inbox)

    def _start_actor_loop(self) -> None:
        install_fast_registry()
        self._mailbox.start(self._first_batch, self._batch, self.peek)

    def peek(self) -> object:
        """What `peek_idle` returns while no message waits or is handled; None: ask.

        It is called on the thread of whoever wants to know, and must be quick and change nothing.
        """
        return None

    def _first_batch(self) -> None:
        try:
            self._actor_loop_setup()
        except BaseException:  # noqa: BLE001
            self._handle_failure(*sys.exc_info())
        self._batch()

    def _batch(self) -> None:
        mailbox = self._mailbox
        mailbox.start_batch()
        try:
            self._actor_loop_running()
        except _BatchDone:
            mailbox.end_batch()
            return
        except BaseException:  # noqa: BLE001
            self._handle_failure(*sys.exc_info())
        mailbox.close()
        self._actor_loop_teardown()


class ErrorBoundary(Actor):
    """A mixin, placed before the actor class: `class Talk(ErrorBoundary, PoolActor)`.

    - What `on_receive` raises, whatever it is, fails the asker's reply; after a `tell` it is
      logged as an error. The actor goes on: `on_failure` is not called.
    - A `Reply` that `on_receive` returns answers the ask when it is settled itself.
    """

    def _handle_receive(self, message: object) -> object:
        try:
            result: object = super()._handle_receive(message)
        except BaseException as error:  # noqa: BLE001
            self._log(error, message)
            return Failure(_as_exception(error))
        return Deferred(result) if _is_reply(result) else result

    def _log(self, error: BaseException, message: object) -> None:
        inbox = self.actor_inbox
        asked = isinstance(inbox, Mailbox) and inbox.is_reply_expected()
        level = logging.DEBUG if asked else logging.ERROR
        logger.log(level, "%s failed at %s", self, type(message).__name__, exc_info=error)


def _is_reply(result: object) -> TypeGuard[Reply[Any]]:
    return isinstance(result, Reply)


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    # A CancelledError or SystemExit would cancel the asker's task, or end the asker's thread.
    wrapped = RuntimeError(f"the handler was left by {error!r}")
    wrapped.__cause__ = error
    return wrapped
