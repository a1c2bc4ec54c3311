"""Actors with a thread each, on the same mailbox and reply: for debugging."""

import sys
from collections.abc import Callable
from threading import Condition
from typing import Any, ClassVar, cast

from pykka import Future, ThreadingActor

from agent_context._runtime.future import Reply
from agent_context._runtime.internals import Envelope
from agent_context._runtime.mailbox import CAPACITY, Mailbox
from agent_context._runtime.registry import install_fast_registry


class WaitingMailbox(Mailbox):
    """A mailbox whose reader waits for messages."""

    __slots__ = ("_readable",)

    def __init__(self) -> None:
        super().__init__()
        self._readable = Condition(self._lock)

    def get(self) -> Envelope[Any]:
        with self._readable:
            while not self._messages:
                self._current = None
                self._readable.wait()
            return self._take(self._messages)

    def _on_arrival(self) -> None:
        self._readable.notify()


class ThreadActor(ThreadingActor):
    """A `pykka.ThreadingActor` that behaves as a `PoolActor` does, only slower."""

    use_daemon_thread: ClassVar[bool] = True

    mailbox_capacity: ClassVar[int] = CAPACITY
    """Unread messages past which `tell` and `ask` raise `MailboxFull`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._mailbox.capacity = self.mailbox_capacity

    @staticmethod
    def _create_actor_inbox() -> WaitingMailbox:
        return WaitingMailbox()

    @staticmethod
    def _create_future() -> Future[Any]:
        return Reply()

    @property
    def _mailbox(self) -> WaitingMailbox:
        return cast("WaitingMailbox", self.actor_inbox)

    def _start_actor_loop(self) -> None:
        install_fast_registry()
        super()._start_actor_loop()

    def _actor_loop_setup(self) -> None:
        self._survive(super()._actor_loop_setup)

    def _actor_loop_running(self) -> None:
        self._survive(super()._actor_loop_running)

    def _actor_loop_teardown(self) -> None:
        self._mailbox.close()
        super()._actor_loop_teardown()

    def _survive(self, stage: Callable[[], None]) -> None:
        try:
            stage()
        except BaseException:  # noqa: BLE001
            self._handle_failure(*sys.exc_info())
