"""Coroutines that somebody else runs: another thread's loop, or a task that is left to itself."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["LoopGone", "elsewhere", "look_at"]

T = TypeVar("T")


class LoopGone(RuntimeError):
    """The loop was closed; nothing was run."""


async def elsewhere(
    make: Callable[[], Coroutine[Any, Any, T]],
    loop: asyncio.AbstractEventLoop,
    variables: contextvars.Context,
) -> T:
    """What `make()` returns on `loop`; cancelling this cancels it there. Raises `LoopGone`."""
    work = make()
    try:
        future = variables.run(asyncio.run_coroutine_threadsafe, work, loop)
    except RuntimeError as error:
        work.close()
        raise LoopGone(str(error)) from error
    return await asyncio.wrap_future(future)


def look_at(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()
