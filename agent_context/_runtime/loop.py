"""An asyncio loop on a thread of its own."""

import asyncio
import importlib
import logging
from collections.abc import Callable
from threading import Thread, current_thread
from typing import TypeVarTuple, Unpack, cast

from agent_context._runtime.executor import forbid_blocking

logger = logging.getLogger(__name__)

Ts = TypeVarTuple("Ts")


class LoopThread:
    """Runs from its creation to `stop`; a daemon."""

    def __init__(self, name: str) -> None:
        self._runner = asyncio.Runner(loop_factory=_new_loop)
        self.loop = self._runner.get_loop()
        self._stopping = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Call `function` on the loop soon, in the order of the calls, from any thread.

        Raises `RuntimeError` when the loop is closed.
        """
        self.loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        """Cancel what runs and end the thread; on the loop only."""
        self._stopping = True
        self.loop.stop()

    def join(self, timeout: float) -> bool:
        """Wait for the end; False if it did not come in time."""
        if self._thread is not current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        forbid_blocking()
        with self._runner:
            while not self._stopping:
                try:
                    self.loop.run_forever()
                except BaseException:
                    # asyncio lets SystemExit and KeyboardInterrupt out of the loop.
                    logger.exception("An exception left the I/O loop, which goes on")


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    return cast("asyncio.AbstractEventLoop", uvloop.new_event_loop())
