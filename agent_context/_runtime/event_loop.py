"""The one thread where this process waits for the network, and the coroutines that run on it."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import importlib
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock, Thread, current_thread
from typing import Any, Final, ParamSpec, TypeVar, TypeVarTuple, Unpack, cast

from pykka import Timeout

from agent_context._runtime.executor import ElasticExecutor, forbid_blocking
from agent_context._runtime.fork_safety import ForkLocal, ProcessToken, forked_process_error
from agent_context._runtime.future import Reply

logger = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")
P = ParamSpec("P")
T = TypeVar("T")


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


class IoTask:
    """A coroutine that waits, runs or has ended; its methods may be called from any thread."""

    __slots__ = ("_context", "_end", "_factory", "_jobs", "_thread")

    def __init__(
        self,
        factory: Callable[[], Coroutine[Any, Any, None]],
        thread: LoopThread,
        jobs: TaskQueue,
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

    def add_done_callback(self, callback: Callable[[IoTask], object]) -> None:
        """Call `callback(self)` after the end: on the loop, or at once if it is over."""
        self._end.add_done_callback(lambda _: callback(self))

    def start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
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

    def _on_ended(self, job: IoTask, task: asyncio.Task[None]) -> None:
        del self._running[job]
        job.end(cancelled=task.cancelled())
        if self._waiting:
            self._start_soon()


MAX_TASKS: Final = 4096
STARTS_PER_TICK: Final = 256


class Timer:
    """A delayed call, made by `IoThread.call_later`."""

    __slots__ = ("_due", "_function", "_handle", "_thread")

    def __init__(self, thread: LoopThread, seconds: float, function: Callable[[], object]) -> None:
        self._thread = thread
        self._due = time.monotonic() + seconds
        self._function: Callable[[], object] | None = function
        self._handle: Any = None

    def cancel(self) -> None:
        """From any thread; it does not stop a call that has begun."""
        self._function = None
        # A loop that is closed calls nobody.
        with suppress(RuntimeError):
            self._thread.call(self._disarm)

    def arm(self) -> None:
        self._handle = self._thread.loop.call_later(self._due - time.monotonic(), self._fire)

    def _disarm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _fire(self) -> None:
        function, self._function = self._function, None
        if function is None:
            return
        try:
            function()
        except BaseException:
            logger.exception("A delayed call failed")


class _LoopState:
    """A loop thread with its jobs: what `shutdown` ends and the next use makes anew."""

    def __init__(self, *, max_jobs: int, pace: int) -> None:
        self.thread = LoopThread("agent-context-io")
        self.jobs = TaskQueue(self.thread.loop, limit=max_jobs, pace=pace)

    def stop(self, timeout: float) -> bool:
        self.thread.call(self._stop)
        return self.thread.join(timeout)

    def _stop(self) -> None:
        self.jobs.cancel_all()
        self.thread.stop()


class IoThread:
    """An asyncio loop (uvloop if it is installed) on a daemon thread, started when first needed.

    At most `max_jobs` coroutines run at once and at most `pace` of them begin in one turn of the
    loop, so that a thousand requests at once do not hold up those that are under way.
    """

    def __init__(self, *, max_jobs: int = MAX_TASKS, pace: int = STARTS_PER_TICK) -> None:
        self._home = ProcessToken.current
        self._max_jobs, self._pace = max_jobs, pace
        self._lock = Lock()
        self._state: _LoopState | None = None
        self._cpu = ElasticExecutor("agent-context-cpu", size=2, keep=2, cap=2)

    def spawn(self, factory: Callable[[], Coroutine[Any, Any, None]]) -> IoTask:
        """Run `factory()` on the loop, when its turn comes and in the caller's context.

        What it raises is logged. From any thread.
        """
        with self._running() as state:
            job = IoTask(factory, state.thread, state.jobs)
            state.thread.call(state.jobs.add, job)
        return job

    def call_later(self, seconds: float, function: Callable[[], object]) -> Timer:
        """Call `function` on the loop, after a while. It must not block. From any thread."""
        with self._running() as state:
            timer = Timer(state.thread, seconds, function)
            state.thread.call(timer.arm)
        return timer

    def offload(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Reply[T]:
        """Run CPU work beside the loop, on one of two threads: await the reply, or `get` it."""
        reply: Reply[T] = Reply()

        def work() -> None:
            try:
                reply.set(function(*args, **kwargs))
            except BaseException:  # noqa: BLE001
                reply.set_exception()

        self._cpu.submit(work)
        return reply

    def shutdown(self, timeout: float = 5.0) -> bool:
        """Cancel the jobs and end the thread; False if they took longer. The next use restarts."""
        if self._home is not ProcessToken.current:
            return True
        with self._lock:
            state, self._state = self._state, None
        return state is None or state.stop(timeout)

    @contextmanager
    def _running(self) -> Generator[_LoopState]:
        # The lock is held while a call is queued, so that it stands before the one that stops.
        if self._home is not ProcessToken.current:
            raise forked_process_error()
        with self._lock:
            if self._state is None:
                self._state = _LoopState(max_jobs=self._max_jobs, pace=self._pace)
            yield self._state


def _make() -> IoThread:
    loop = IoThread()
    atexit.register(loop.shutdown, timeout=1.0)
    return loop


io_loop = ForkLocal(_make)
