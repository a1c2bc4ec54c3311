"""A lock for coroutines of any event loops: first come, first served."""

from collections.abc import Callable
from threading import Lock

from agent_context._runtime.future import Reply


class FairAsyncLock:
    """Lets in one coroutine after the other, in the order in which they asked.

    Unlike asyncio's lock it belongs to no loop, and whoever was let in may leave from anywhere.
    """

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: Reply[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether somebody is inside or waits."""
        last = self._last
        return last is not None and not last.done()

    async def acquire(self) -> Callable[[], None]:
        """Wait until all who asked before have left. Call what comes back to leave, once or more.

        Who is cancelled while waiting has left.
        """
        mine: Reply[None] = Reply()
        with self._lock:
            before, self._last = self._last, mine
        if before is not None:
            try:
                await before
            except BaseException:
                before.add_done_callback(lambda _: mine.set(None))
                raise
        return lambda: None if mine.done() else mine.set(None)

    async def wait_idle(self) -> None:
        """Wait until all who are inside or wait now have left."""
        if (last := self._last) is not None:
            await last
