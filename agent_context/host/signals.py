"""Signal handlers that drain a host before the process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from threading import Thread, current_thread, main_thread
from types import FrameType
from typing import Any

from agent_context._runtime.fork_safety import ProcessToken
from agent_context.errors import UsageError

__all__ = ["SignalDrain"]


class SignalDrain:
    """Handlers that call `drain` on a thread of its own and then let the signal do its work.

    A second signal does its work at once.
    """

    def __init__(self, signals: Sequence[int], drain: Callable[[], object]) -> None:
        self._home = ProcessToken.current
        self._drain = drain
        if current_thread() is not main_thread():
            raise UsageError("signal handlers: only the main thread can install them")
        self._before: dict[int, Any] = {
            each: signal.signal(each, self._on_signal) for each in signals
        }

    def remove(self) -> None:
        """Put back what was there before, unless somebody else has put something there since.

        On another thread than the main one nothing happens.
        """
        if current_thread() is not main_thread():
            return
        for number, before in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before if before is not None else signal.SIG_DFL)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        # On the main thread, between any two of its steps: whatever waits must wait elsewhere.
        self.remove()
        if self._home is not ProcessToken.current:
            signal.raise_signal(number)
            return
        # No daemon: an interpreter that ends meanwhile waits for it.
        Thread(target=self._end, args=(number,), name="agent-context-drain").start()

    def _end(self, number: int) -> None:
        try:
            self._drain()
        finally:
            os.kill(os.getpid(), number)
