"""Work that runs somewhere else: on another thread's event loop, or on a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from agent_context._runtime.executor import ElasticExecutor
from agent_context._runtime.fork_safety import ForkLocal

__all__ = ["LoopClosed", "in_thread", "retrieve_exception", "run_on_loop"]

T = TypeVar("T")


class LoopClosed(RuntimeError):
    """The loop was closed; nothing was run."""


async def run_on_loop(
    make: Callable[[], Coroutine[Any, Any, T]],
    loop: asyncio.AbstractEventLoop,
    variables: contextvars.Context,
) -> T:
    """What `make()` returns on `loop`; cancelling this cancels it there. Raises `LoopClosed`."""
    work = make()
    try:
        future = variables.run(asyncio.run_coroutine_threadsafe, work, loop)
    except RuntimeError as error:
        work.close()
        raise LoopClosed(str(error)) from error
    return await asyncio.wrap_future(future)


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended, or asyncio complains that nobody did."""
    if not task.cancelled():
        task.exception()


# A call that takes long lends its place, so that quick ones do not wait for slow ones. Past the cap
# calls wait, and may run out of time: it bounds what tools that never end can take.
_workers = ForkLocal(lambda: ElasticExecutor("agent-context-tools", size=8, keep=8, cap=1024))


async def in_thread(
    function: Callable[[], object], workers: Callable[[], ElasticExecutor] = _workers
) -> object:
    """What `function()` returns or raises. A call that nobody waits for any more never begins."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[object] = loop.create_future()
    variables = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if not future.done():
            future.set_result(value) if error is None else future.set_exception(error)

    def work() -> None:
        if future.cancelled():
            return
        value, error = _outcome(variables, function)
        # The loop may be gone by now, and with it whoever waited.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, value, error)

    workers().submit(work)
    return await future


def _outcome(
    variables: contextvars.Context, function: Callable[[], object]
) -> tuple[object, BaseException | None]:
    try:
        return variables.run(function), None
    except StopIteration as error:
        return None, _as_exception(error)  # a future takes none
    except Exception as error:  # noqa: BLE001 - it belongs to the caller
        return None, error
    except BaseException as error:  # noqa: BLE001 - SystemExit would leave the caller's loop
        return None, _as_exception(error)


def _as_exception(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")
