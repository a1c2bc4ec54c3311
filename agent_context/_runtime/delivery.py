"""Delivery of events to subscribers, on separate threads: a slow or broken one affects no other."""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from threading import Lock
from typing import Final, Generic, TypeVar

from pykka import Timeout

from agent_context._runtime.executor import ElasticExecutor
from agent_context._runtime.fork_safety import ForkLocal
from agent_context._runtime.future import Reply
from agent_context._runtime.reentrancy import in_scope, reentrancy_scope
from agent_context.errors import DeadlockError

logger = logging.getLogger(__name__)

E = TypeVar("E")

CAPACITY: Final = 10_000
MAX_STUCK: Final = 1024
"""Callbacks that may be stuck at once in a process while the others go on."""

BATCH: Final = 64
"""Events a subscriber gets before others have their turn."""

# A callback that does not return takes a thread. Past the cap, nobody would hear anything.
subscriber_executor = ForkLocal(
    lambda: ElasticExecutor("agent-context-events", size=2, keep=2, cap=MAX_STUCK)
)


class _FlushMarker(Reply[None]):
    """Stands in the queue for a `flush` that waits."""


class SubscriberQueue(Generic[E]):
    """Delivers events to one callback: in order, one at a time, never in the producer's thread.

    A callback that raises is logged and gets the next event. A subscriber that falls `capacity`
    events behind is closed, which is logged and told to `on_drop` with the number of events it
    will not get. The callback runs in `reentrancy_scope(key)`, if there is a key.
    """

    def __init__(
        self,
        callback: Callable[[E], object],
        *,
        capacity: int = CAPACITY,
        on_drop: Callable[[int], object] | None = None,
        key: Hashable = None,
    ) -> None:
        self._callback = callback
        self._capacity = capacity
        self._on_drop = on_drop
        self._key = key
        self._lock = Lock()
        self._queue: deque[E | _FlushMarker] = deque()
        self._scheduled = False
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, event: E) -> None:
        """Queue an event without waiting; after the close, forget it."""
        dropped = 0
        with self._lock:
            if self._closed:
                return
            self._queue.append(event)
            if len(self._queue) > self._capacity:
                dropped = len(self._queue)
            else:
                self._schedule()
        if dropped:
            self._drop(dropped)

    def close(self) -> None:
        """Deliver no more events, not even queued ones; one in progress is finished."""
        with self._lock:
            self._closed = True
            forgotten, self._queue = self._queue, deque()
        for each in forgotten:
            if isinstance(each, _FlushMarker):
                each.set_error(Timeout("closed"))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the callback has had every event queued so far; False on timeout."""
        if in_scope(self):
            raise DeadlockError("a flush from inside the callback would wait for itself")
        try:
            self.mark().get(timeout=timeout)
        except Timeout:
            return False
        return True

    def mark(self) -> Reply[None]:
        """A future that settles when the callback has had every event queued so far."""
        mark = _FlushMarker()
        with self._lock:
            if self._closed:
                mark.set(None)
            else:
                self._queue.append(mark)
                self._schedule()
        return mark

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            subscriber_executor().submit(self._deliver)

    def _drop(self, count: int) -> None:
        self.close()
        logger.warning("A subscriber was dropped, %d events behind: %r", count, self._callback)
        if self._on_drop is not None:
            on_drop = self._on_drop
            subscriber_executor().submit(lambda: on_drop(count))

    def _deliver(self) -> None:
        with reentrancy_scope(self), reentrancy_scope(self._key):
            for event in islice(self._waiting(), BATCH):
                self._bring(event)
        with self._lock:
            self._scheduled = False
            if self._queue:
                self._schedule()

    def _waiting(self) -> Iterator[E | _FlushMarker]:
        while True:
            with self._lock:
                if not self._queue:
                    return
                event = self._queue.popleft()
            yield event

    def _bring(self, event: "E | _FlushMarker") -> None:
        if isinstance(event, _FlushMarker):
            event.set(None)
            return
        try:
            self._callback(event)
        except BaseException:
            logger.exception("A subscriber failed: %r", self._callback)
