"""Coroutines that wait for their turn to run on a loop."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from pykka import Timeout

from agent_context._runtime.future import Reply
from agent_context._runtime.loop import LoopThread

logger = logging.getLogger(__name__)


class IoTask:
    """A coroutine that waits, runs or has ended; its methods may be called from any thread."""

    __slots__ = ("_context", "_end", "_factory", "_jobs", "_thread")

    def __init__(
        self,
        factory: Callable[[], Coroutine[Any, Any, None]],
        thread: LoopThread,
        jobs: "TaskQueue",
    ) -> None:
        self._factory = factory
        self._thread = thread
        self._jobs = jobs
        self._context = contextvars.copy_context()
        self._end: Reply[bool] = Reply()

    def cancel(self) -> None:
        """End it soon: without running it, if it has not begun."""
        # A loop that is closed has ended all of its jobs.
        with suppress(RuntimeError):
            self._thread.call(self._jobs.cancel, self)

    def done(self) -> bool:
        return self._end.done()

    def cancelled(self) -> bool:
        """Tell whether it was cancelled, before or while it ran."""
        return self._end.done() and self._end.get()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for its end; False if it did not come in time."""
        with suppress(Timeout):
            self._end.get(timeout=timeout)
        return self._end.done()

    def add_done_callback(self, callback: "Callable[[IoTask], object]") -> None:
        """Call `callback(self)` after the end: on the loop, or at once if it is over."""
        self._end.add_done_callback(lambda _: callback(self))

    def start(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Task[None]":
        return loop.create_task(self._run(), context=self._context)

    def end(self, *, cancelled: bool) -> None:
        self._end.set(cancelled)

    async def _run(self) -> None:
        try:
            await self._factory()
        except asyncio.CancelledError:
            raise
        except BaseException:
            # Not only an Exception: a SystemExit would leave the loop, and stop it for all.
            logger.exception("A job on the I/O loop failed")


class TaskQueue:
    """At most `limit` run at once, `pace` begin in one turn of the loop; used on the loop only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, limit: int, pace: int) -> None:
        self._loop = loop
        self._limit = limit
        self._pace = pace
        # A dict: in order, and a job that is cancelled leaves without a search.
        self._waiting: dict[IoTask, None] = {}
        self._running: dict[IoTask, asyncio.Task[None]] = {}
        self._starting = False

    def add(self, job: IoTask) -> None:
        self._waiting[job] = None
        self._start_soon()

    def cancel(self, job: IoTask) -> None:
        if job in self._waiting:
            del self._waiting[job]
            job.end(cancelled=True)
        elif job in self._running:
            self._running[job].cancel()

    def cancel_all(self) -> None:
        for job in [*self._waiting, *self._running]:
            self.cancel(job)

    def _start_soon(self) -> None:
        if not self._starting:
            self._starting = True
            self._loop.call_soon(self._start_some)

    def _start_some(self) -> None:
        self._starting = False
        room = min(self._pace, self._limit - len(self._running), len(self._waiting))
        for job in [job for job, _ in zip(self._waiting, range(room), strict=False)]:
            del self._waiting[job]
            self._start(job)
        if self._waiting and len(self._running) < self._limit:
            self._start_soon()

    def _start(self, job: IoTask) -> None:
        task = job.start(self._loop)
        self._running[job] = task
        task.add_done_callback(partial(self._on_ended, job))

    def _on_ended(self, job: IoTask, task: "asyncio.Task[None]") -> None:
        del self._running[job]
        job.end(cancelled=task.cancelled())
        if self._waiting:
            self._start_soon()
