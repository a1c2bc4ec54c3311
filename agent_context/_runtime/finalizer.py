"""Calls that a finalizer asks for.

A finalizer may run anywhere, even where this thread holds the very lock that its work needs: all it
may do is put that work into a queue for another thread.
"""

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

from agent_context._runtime.fork_safety import ForkLocal

logger = logging.getLogger(__name__)


class Finalizer:
    """A daemon thread that makes the calls. To be had before it is needed: it can't start there."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        Thread(target=self._run, name="agent-context-finalizer", daemon=True).start()

    def call_soon(self, function: Callable[[], object]) -> None:
        self._calls.put(function)

    def _run(self) -> None:
        while True:
            try:
                self._calls.get()()
            except Exception:
                logger.exception("A call from a finalizer failed")


finalizer_thread = ForkLocal(Finalizer)
