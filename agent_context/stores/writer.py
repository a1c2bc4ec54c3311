"""The way to a store for all who must not wait for it: one thread writes, a few read.

What waits when a commit ends goes into the next one together. So a hundred conversations cost
hardly more commits than one does.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import ClassVar, Final, ParamSpec, TypeVar

from msgspec import Struct, field

from agent_context._runtime import Failure, Reply
from agent_context._runtime.executor import ElasticExecutor
from agent_context._runtime.fork_safety import ForkLocal, ProcessToken, forked_process_error
from agent_context.errors import StoreError, StoreUnavailable
from agent_context.stores.store import Store, Write, WriteDelayed

__all__ = ["StoreExecutor"]

P = ParamSpec("P")
T = TypeVar("T")

WRITES: Final = 512
BYTES: Final = 8 << 20
"""Bounds of one transaction: past these, what waits goes into the next."""

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0


class StoreExecutor:
    """Writes to a store in the order of their submission, and reads beside them.

    A write that finds the store unavailable is tried again for `patience` seconds. Where one fails,
    those behind it of the same conversation and epoch fail with it, unwritten: a log has no gaps.
    """

    _lock: ClassVar[ForkLocal[Lock]] = ForkLocal(Lock)
    _known: ClassVar[weakref.WeakValueDictionary[int, StoreExecutor]] = (
        weakref.WeakValueDictionary()
    )

    @classmethod
    def for_store(cls, store: Store) -> StoreExecutor:
        """The one access that all conversations of this store share."""
        with cls._lock():
            # An access keeps its store alive, so that no other store has this id meanwhile.
            access = cls._known.get(id(store))
            if access is None or access.closed:
                access = cls._known[id(store)] = cls(store)
            return access

    def __init__(self, store: Store, *, patience: float = 10.0) -> None:
        self.store = store
        self._home = ProcessToken.current
        self._closed = False
        self._guard = Lock()
        self._writer = GroupCommitWriter(store, patience)
        # Of its own: a store that hangs must not keep the readers of another one waiting.
        self._readers = ElasticExecutor("agent-context-store-read", size=2, keep=2, cap=8)
        weakref.finalize(self, self._readers.stop).atexit = False
        # The thread holds the writer alone, so that an access nobody uses can go.
        self._farewell = weakref.finalize(self, self._writer.stop)
        self._farewell.atexit = False

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, write: Write) -> Reply[None]:
        """Write soon. The reply is settled after the commit, on the thread that writes."""
        self._check_home()
        waiting = _PendingWrite(write, time.monotonic(), Reply())
        with self._guard:
            if self._closed:
                waiting.reply.set(Failure(StoreUnavailable("the access to the store is closed")))
            elif not self._writer.put(waiting):
                waiting.reply.set(Failure(StoreUnavailable("no thread could be started to write")))
        return waiting.reply

    def read(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Reply[T]:
        """Call a method of the store on a thread that may wait for it."""
        self._check_home()
        reply: Reply[T] = Reply()

        def call() -> None:
            try:
                value = function(*args, **kwargs)
            except BaseException:  # noqa: BLE001
                reply.set_exception()
            else:
                reply.set(value)

        self._readers.submit(call)
        return reply

    def close(self, timeout: float | None = None) -> bool:
        """Write what waits and end, but for the store. False if it took longer than `timeout`."""
        self._check_home()
        with self._guard:
            self._closed = True
            self._farewell()
        return self._writer.ended.wait(timeout)

    def _check_home(self) -> None:
        if self._home is not ProcessToken.current:
            raise forked_process_error()


class _PendingWrite(Struct, frozen=True, eq=False):
    write: Write
    since: float
    reply: Reply[None]

    def size(self) -> int:
        draft = self.write.draft
        entries = sum(len(entry.payload) for entry in self.write.entries)
        return entries + (len(draft) if isinstance(draft, bytes) else 0)


class _Failure(Struct, frozen=True):
    epoch: int
    error: BaseException


class _Locked(Struct):
    """Writes of one conversation that can't be written, while those of others can."""

    since: float
    pause: float = FIRST_PAUSE
    due: float = float("inf")
    waiting: list[_PendingWrite] = field(default_factory=list[_PendingWrite])


class GroupCommitWriter:
    """The queue, and the thread that empties it; started with the first write."""

    def __init__(self, store: Store, patience: float) -> None:
        self._store = store
        self._patience = patience
        self._queue: SimpleQueue[_PendingWrite | None] = SimpleQueue()
        self._started = False
        self._stopping = False
        self._batch: list[_PendingWrite] = []
        self._locked: dict[str, _Locked] = {}
        self._failures: dict[str, _Failure] = {}
        self._down_since: float | None = None
        self._pause = FIRST_PAUSE
        # Not the one that all share: programs seed that, and test frameworks watch it.
        self._luck = random.Random()
        self.ended = Event()

    def put(self, waiting: _PendingWrite) -> bool:
        """Called under the lock of the access. False if the thread can't be started now."""
        if not self._started:
            try:
                Thread(target=self._run, name="agent-context-store-write", daemon=True).start()
            except RuntimeError:
                return False
            self._started = True
        self._queue.put(waiting)
        return True

    def stop(self) -> None:
        """End when what waits is written. A finalizer may call it anywhere."""
        if self._started:
            self._queue.put(None)
        else:
            self.ended.set()

    def _run(self) -> None:
        while self._gather():
            self._commit()
        self.ended.set()

    def _gather(self) -> bool:
        """Take what waits, and wait if nothing does; False at the end."""
        self._take_locked()
        waits = any(locked.waiting for locked in self._locked.values())
        if not self._batch and (waits or not self._stopping):
            with suppress(Empty):
                self._take(self._queue.get(timeout=self._until_due()))
        size = sum(waiting.size() for waiting in self._batch)
        with suppress(Empty):
            while len(self._batch) < WRITES and size < BYTES:
                size += self._take(self._queue.get_nowait())
        return bool(self._batch) or waits or not self._stopping

    def _take(self, waiting: _PendingWrite | None) -> int:
        if waiting is None:
            self._stopping = True
            return 0
        if failure := self._failure(waiting.write):
            waiting.reply.set(Failure(failure.error))
            return 0
        locked = self._locked.get(waiting.write.conversation_id)
        if locked is not None and locked.waiting:
            locked.waiting.append(waiting)
            return 0
        self._batch.append(waiting)
        return waiting.size()

    def _take_locked(self) -> None:
        """Take those again that could not be written alone and have paused."""
        now = time.monotonic()
        for locked in self._locked.values():
            if locked.due <= now:
                locked.due = float("inf")
                waiting, locked.waiting = locked.waiting, []
                self._batch += waiting

    def _until_due(self) -> float | None:
        """Seconds until then; None if there are none."""
        due = min((locked.due for locked in self._locked.values()), default=float("inf"))
        return None if due == float("inf") else max(0.0, due - time.monotonic())

    def _commit(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        try:
            answers = self._write([waiting.write for waiting in batch])
        except StoreUnavailable as error:
            self._wait_out(batch, error)
        except StoreError as error:
            self._settle(batch, [error] * len(batch))
        else:
            self._down_since, self._pause = None, FIRST_PAUSE
            self._settle(batch, answers)

    def _write(self, writes: list[Write]) -> Sequence[StoreError | None]:
        try:
            answers = self._store.write(writes)
        except StoreError:
            raise
        # Whatever it is: a thread that ended here would leave everybody waiting.
        except BaseException as error:
            raise StoreError(f"the store failed: {error!r}") from error
        if len(answers) != len(writes):
            raise StoreError(f"the store gave {len(answers)} answers to {len(writes)} writes")
        return answers

    def _settle(
        self, batch: Sequence[_PendingWrite], answers: Sequence[BaseException | None]
    ) -> None:
        for waiting, error in zip(batch, answers, strict=True):
            if error is None:
                self._locked.pop(waiting.write.conversation_id, None)
                waiting.reply.set(None)
            elif isinstance(error, WriteDelayed):
                self._wait_alone(waiting, error)
            else:
                self._fail(waiting, error)

    def _wait_alone(self, waiting: _PendingWrite, error: WriteDelayed) -> None:
        """Keep one that alone can't be written now for after a pause, unless it waits too long."""
        name, now = waiting.write.conversation_id, time.monotonic()
        locked = self._locked.setdefault(name, _Locked(now))
        if now - locked.since >= self._patience or self._failure(waiting.write):
            self._fail(waiting, error)
            return
        if not locked.waiting:
            locked.due = now + locked.pause * self._luck.uniform(0.5, 1.0)
            locked.pause = min(2 * locked.pause, LONGEST_PAUSE)
        locked.waiting.append(waiting)

    def _wait_out(self, batch: Sequence[_PendingWrite], error: StoreUnavailable) -> None:
        """Give up on those that have waited too long, and keep the others for after a pause."""
        now = time.monotonic()
        self._down_since = now if self._down_since is None else self._down_since
        for waiting in batch:
            if now - max(waiting.since, self._down_since) >= self._patience:
                self._fail(waiting, error)
            else:
                self._take(waiting)
        if self._batch:
            time.sleep(self._pause * self._luck.uniform(0.5, 1.0))
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _fail(self, waiting: _PendingWrite, error: BaseException) -> None:
        write = waiting.write
        self._locked.pop(write.conversation_id, None)
        failure = self._failure(write) or _Failure(write.epoch, error)
        self._failures[write.conversation_id] = failure
        waiting.reply.set(Failure(failure.error))

    def _failure(self, write: Write) -> _Failure | None:
        """How an earlier write of the same conversation and epoch failed."""
        failure = self._failures.get(write.conversation_id)
        if failure is None or failure.epoch == write.epoch:
            return failure
        if failure.epoch < write.epoch:
            del self._failures[write.conversation_id]
        return None
