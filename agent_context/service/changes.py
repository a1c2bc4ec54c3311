"""Changes of conversations as streams that resume: read from the log, and woken by what happens."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence

from agent_context.errors import ConversationClosed
from agent_context.events import ChangeEvent
from agent_context.host import FeedChange
from agent_context.service.sse import Bell

__all__ = ["ChangeWatch"]

ALL = ""
"""In the place of an id: every conversation."""


class ChangeWatch:
    """Tells followers that a conversation has changed; what it was they read themselves."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._lock = threading.Lock()
        self._changed: set[str] = set()
        self._waiting: dict[str, list[asyncio.Future[bool]]] = defaultdict(list)
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, event: ChangeEvent) -> None:
        """Take in a change, on whatever thread; many of them wake the loop once."""
        with self._lock:
            loop, first = self._loop, not self._changed
            if loop is None or loop.is_closed():
                return
            self._changed.add(event.conversation_id)
        if first:
            loop.call_soon_threadsafe(self._wake)

    async def follow(
        self,
        key: str,
        read: Callable[[int], Sequence[FeedChange]],
        position: Callable[[FeedChange], int],
        after: int,
    ) -> AsyncIterator[Sequence[FeedChange]]:
        """The pages that `read` gives behind a position, for ever.

        An empty page means that nothing has come for a while. Raises `ConversationClosed` when
        the service stops.
        """
        self._loop = asyncio.get_running_loop()
        while True:
            # Waiting begins before the reading, so that nothing falls between the two.
            more = self._loop.create_future()
            self._waiting[key].append(more)
            try:
                if page := await asyncio.to_thread(read, after):
                    after = position(page[-1])
                    yield page
                elif not await self._bell.wait(more):
                    if self._bell.closed:
                        raise ConversationClosed("the service stops")
                    yield ()
            finally:
                self._forget(key, more)

    def _forget(self, key: str, more: asyncio.Future[bool]) -> None:
        waiting = self._waiting.get(key)
        if waiting is not None and more in waiting:
            waiting.remove(more)
            if not waiting:
                del self._waiting[key]

    def _wake(self) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
        for key in (*changed, ALL):
            for each in self._waiting.pop(key, ()):
                if not each.done():
                    each.set_result(True)
