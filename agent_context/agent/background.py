"""Tasks that finish their work although nobody waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["BackgroundTasks"]


class _UncancellableTask(asyncio.Task[None]):
    """A task that `asyncio.run` can't cut short on its way out.

    It cancels all tasks once its loop stands still, and then runs the loop until they have ended.
    Whoever cancels while the loop runs, a timeout for one, is obeyed.
    """

    def cancel(self, msg: Any | None = None) -> bool:  # noqa: ANN401 - asyncio's signature
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return super().cancel(msg)


class BackgroundTasks:
    """Tasks that run beside their caller. They are held here, or they might be collected."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Run `work` on this loop."""
        task = _UncancellableTask(work, loop=asyncio.get_running_loop(), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_idle(self) -> None:
        """Wait until all tasks of this loop have ended."""
        here = asyncio.get_running_loop()
        running = [task for task in self._tasks if task.get_loop() is here]
        if running:
            await asyncio.wait(running)
