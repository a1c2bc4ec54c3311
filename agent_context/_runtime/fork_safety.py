"""Which process this is: after `os.fork` the child has none of its parent's threads."""

import os
import sys
from collections.abc import Callable
from threading import Lock
from typing import ClassVar, Generic, TypeVar

from agent_context.errors import ConversationClosed

T = TypeVar("T")


class ProcessToken:
    """A token for the running process, compared by identity because `os.getpid` is a syscall."""

    current: ClassVar["ProcessToken"]


ProcessToken.current = ProcessToken()


def forked_process_error() -> ConversationClosed:
    """What to raise for something whose threads stayed in the parent."""
    return ConversationClosed(
        "this runs in the process that was forked, not in its child: start worker processes with"
        " 'spawn', as in multiprocessing.get_context('spawn')",
    )


def on_fork_child(reset: Callable[[], None]) -> None:
    """Call `reset` in every forked child, before any of its code runs."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=reset)


class ForkLocal(Generic[T]):
    """One instance a process: made when first wanted, and anew in a forked child."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
        self._lock = Lock()
        on_fork_child(self._reset)

    def __call__(self) -> T:
        value = self._value
        return value if value is not None else self._first()

    def _first(self) -> T:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value

    def _reset(self) -> None:
        # The lock may have been held by a thread that does not exist here.
        self._lock = Lock()
        self._value = None


def _new_process() -> None:
    ProcessToken.current = ProcessToken()


on_fork_child(_new_process)
