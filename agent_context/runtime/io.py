"""The one thread where this process waits for the network."""

import atexit
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar

from agent_context.runtime.future import Reply
from agent_context.runtime.jobs import Job, Jobs
from agent_context.runtime.loop import LoopThread
from agent_context.runtime.process import PerProcess, Process, closed_by_fork
from agent_context.runtime.workers import Workers

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

MAX_JOBS: Final = 4096
PACE: Final = 256


class Timer:
    """A call that was put off; made by `IoLoop.call_later`."""

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


class _Engine:
    """A loop thread with its jobs: what `shutdown` ends and the next use makes anew."""

    def __init__(self, *, max_jobs: int, pace: int) -> None:
        self.thread = LoopThread("agent-context-io")
        self.jobs = Jobs(self.thread.loop, limit=max_jobs, pace=pace)

    def stop(self, timeout: float) -> bool:
        self.thread.call(self._stop)
        return self.thread.join(timeout)

    def _stop(self) -> None:
        self.jobs.cancel_all()
        self.thread.stop()


class IoLoop:
    """An asyncio loop (uvloop if it is installed) on a daemon thread, started when first needed.

    At most `max_jobs` coroutines run at once and at most `pace` of them begin in one turn of the
    loop, so that a thousand requests at once do not hold up those that are under way.
    """

    def __init__(self, *, max_jobs: int = MAX_JOBS, pace: int = PACE) -> None:
        self._home = Process.current
        self._max_jobs, self._pace = max_jobs, pace
        self._lock = Lock()
        self._engine: _Engine | None = None
        self._cpu = Workers("agent-context-cpu", size=2, keep=2, cap=2)

    def spawn(self, factory: Callable[[], Coroutine[Any, Any, None]]) -> Job:
        """Run `factory()` on the loop, when its turn comes and in the caller's context.

        What it raises is logged. From any thread.
        """
        with self._running() as engine:
            job = Job(factory, engine.thread, engine.jobs)
            engine.thread.call(engine.jobs.add, job)
        return job

    def call_later(self, seconds: float, function: Callable[[], object]) -> Timer:
        """Call `function` on the loop, after a while. It must not block. From any thread."""
        with self._running() as engine:
            timer = Timer(engine.thread, seconds, function)
            engine.thread.call(timer.arm)
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
        if self._home is not Process.current:
            return True
        with self._lock:
            engine, self._engine = self._engine, None
        return engine is None or engine.stop(timeout)

    @contextmanager
    def _running(self) -> Generator[_Engine]:
        # The lock is held while a call is queued, so that it stands before the one that stops.
        if self._home is not Process.current:
            raise closed_by_fork()
        with self._lock:
            if self._engine is None:
                self._engine = _Engine(max_jobs=self._max_jobs, pace=self._pace)
            yield self._engine


def _make() -> IoLoop:
    loop = IoLoop()
    atexit.register(loop.shutdown, timeout=1.0)
    return loop


io_loop = PerProcess(_make)
