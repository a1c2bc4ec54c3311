"""The one thread on which this process waits for the network."""

import atexit
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, ParamSpec, TypeVar

from agent_context._runtime.executor import ElasticExecutor
from agent_context._runtime.fork_safety import ForkLocal, ProcessToken, forked_process_error
from agent_context._runtime.future import Reply
from agent_context._runtime.jobs import IoTask, TaskQueue
from agent_context._runtime.loop import LoopThread

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

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
