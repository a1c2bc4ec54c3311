"""A thread pool for short jobs, which grows while some of its threads are stuck."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Lock, RLock, Thread, local

from agent_context._runtime.fork_safety import ForkLocal, ProcessToken, forked_process_error
from agent_context.errors import DeadlockError

logger = logging.getLogger(__name__)


Task = Callable[[], object]


class _Thread(local):
    blocking: Callable[[], AbstractContextManager[None]] = nullcontext


_thread = _Thread()


def blocking_section() -> AbstractContextManager[None]:
    """Wrap a blocking wait: a worker lends its slot meanwhile; on an event loop it raises."""
    return _thread.blocking()


def forbid_blocking() -> None:
    """Make every `blocking_section()` on this thread raise `DeadlockError`."""
    _thread.blocking = _refuse


def _refuse() -> AbstractContextManager[None]:
    raise DeadlockError("a blocking get on the I/O loop would stop everything on it: await instead")


class _Worker:
    __slots__ = ("busy_since", "lent")

    def __init__(self) -> None:
        self.busy_since = 0.0
        self.lent = False


class ElasticExecutor:
    """`size` daemon threads, started when first needed.

    A worker that waits in `blocking_section()`, or has run one job for `patience` seconds, does
    not count: another takes its place, up to `cap` threads. Up to `keep` stay when it comes back.
    A thread that the system refuses is tried again: while jobs wait, and with the next job.
    """

    def __init__(
        self, name: str, *, size: int, keep: int, cap: int, patience: float = 0.05
    ) -> None:
        self._home = ProcessToken.current
        self._name = name
        self._size, self._keep, self._cap = size, keep, cap
        self._patience = patience
        self._jobs: SimpleQueue[Task] = SimpleQueue()
        self._lock = RLock()  # a signal handler may submit what its thread is submitting
        self._threads: set[_Worker] = set()
        self._lent = 0
        self._numbers = count(1)
        self._watcher: Thread | None = None
        self._watching = self._beginning = False
        self._watch_wanted = Lock()
        self._watch_wanted.acquire()
        self._full = False
        self._stopped = False

    def submit(self, job: Task) -> None:
        """Run `job` after those submitted before; what it raises is logged."""
        if self._home is not ProcessToken.current:
            raise forked_process_error()
        self._jobs.put(job)
        # Put first: the watcher lowers its flag before it looks at the queue a last time.
        if not self._watching:
            self._watch()

    def stop(self) -> None:
        """End the threads as they become idle; jobs that wait are done first. For a finalizer."""
        self._stopped = True
        self._jobs.put(_nothing)
        self._wake_watcher()

    def threads(self) -> int:
        """Count the threads there are now."""
        with self._lock:
            return len(self._threads)

    def _watch(self) -> None:
        with self._lock:
            if self._watching or self._beginning:
                return  # the latter in a signal handler: whoever it interrupted goes on
            self._beginning = True
            try:
                if self._watcher is None:
                    self._watcher = self._start(self._keep_watch, f"{self._name}-watch")
                self._fill()
                if self._watcher is not None:
                    self._watching = True
                    self._wake_watcher()
            finally:
                self._beginning = False

    def _wake_watcher(self) -> None:
        with suppress(RuntimeError):  # it is awake already
            self._watch_wanted.release()

    def _fill(self) -> None:
        while len(self._threads) - self._lent < self._size and len(self._threads) < self._cap:
            worker = _Worker()
            self._threads.add(worker)
            name = f"{self._name}-{next(self._numbers)}"
            if self._start(partial(self._work, worker), name) is None:
                self._threads.remove(worker)
                return

    def _start(self, target: Callable[[], None], name: str) -> Thread | None:
        thread = Thread(target=target, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("%s could not be started, and is tried again: %s", name, error)
            return None
        return thread

    def _work(self, worker: _Worker) -> None:
        _thread.blocking = lambda: self._blocking_section(worker)
        while self._needs(worker):
            job = self._jobs.get()
            worker.busy_since = time.monotonic()
            try:
                job()
            except BaseException:
                logger.exception("A job on %s failed", self._name)
            # An idle thread must not keep the last actor it ran alive.
            del job
            worker.busy_since = 0.0
            if worker.lent:
                self._reclaim_slot(worker)
        if self._stopped:
            self._jobs.put(_nothing)  # for the next of them

    def _needs(self, worker: _Worker) -> bool:
        if self._stopped and self._jobs.empty():
            with self._lock:
                self._threads.discard(worker)
            return False
        if len(self._threads) - self._lent <= self._keep:
            return True
        with self._lock:
            if len(self._threads) - self._lent <= self._keep:
                return True
            self._threads.remove(worker)
            return False

    @contextmanager
    def _blocking_section(self, worker: _Worker) -> Generator[None]:
        self._yield_slot(worker)
        try:
            yield
        finally:
            self._reclaim_slot(worker)
            worker.busy_since = time.monotonic()

    def _yield_slot(self, worker: _Worker) -> None:
        with self._lock:
            if not worker.lent:
                worker.lent = True
                self._lent += 1
                self._fill()
                self._warn_if_full()

    def _warn_if_full(self) -> None:
        full = self._lent >= self._cap
        if full and not self._full:
            logger.warning(
                "%s: all %d threads are stuck, so further jobs wait", self._name, self._cap
            )
        self._full = full

    def _reclaim_slot(self, worker: _Worker) -> None:
        with self._lock:
            if worker.lent:
                worker.lent = False
                self._lent -= 1

    def _keep_watch(self) -> None:
        while not self._stopped:
            self._watch_wanted.acquire()
            self._watch_until_idle()

    def _watch_until_idle(self) -> None:
        while self._busy():
            time.sleep(self._patience)
            for worker in self._stuck():
                self._yield_slot(worker)
            with self._lock:
                self._fill()
        self._watching = False
        if self._busy():
            self._watch()

    def _busy(self) -> bool:
        with self._lock:
            at_work = any(worker.busy_since and not worker.lent for worker in self._threads)
        return at_work or not self._jobs.empty()

    def _stuck(self) -> list[_Worker]:
        latest = time.monotonic() - self._patience
        with self._lock:
            return [w for w in self._threads if not w.lent and 0.0 < w.busy_since < latest]


def _nothing() -> None:
    """Wakes a thread that waits for a job."""


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
