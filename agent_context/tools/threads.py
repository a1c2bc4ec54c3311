"""Synchronous tools: each call on a thread, so that it stops no event loop."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress

from agent_context.runtime.process import PerProcess
from agent_context.runtime.workers import Workers

__all__ = ["in_thread"]

# A call that takes long lends its place, so that quick ones do not wait for slow ones. Past the cap
# calls wait, and may run out of time: it bounds what tools that never end can take.
_workers = PerProcess(lambda: Workers("agent-context-tools", size=8, keep=8, cap=64))


async def in_thread(function: Callable[[], object]) -> object:
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

    _workers().submit(work)
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
