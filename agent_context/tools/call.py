"""One call: run within its time, whatever the tool does; and calls that fail again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from agent_context.errors import ToolError
from agent_context.messages import ToolCall
from agent_context.tools.arguments import require_arguments
from agent_context.tools.offload import retrieve_exception
from agent_context.tools.tool import CallableTool, ToolContext

__all__ = ["AroundTool", "RepeatedFailures", "run_tool", "surround"]

logger = logging.getLogger(__name__)

AroundTool = Callable[[ToolContext, Callable[[ToolContext], Awaitable[object]]], Awaitable[object]]
"""Called with a call and with what carries it out, whose result it returns."""

_GRACE: Final = 1.0
"""Seconds that a tool has to clean up when it is cancelled; then it is left to itself."""


async def run_tool(
    tool: CallableTool, context: ToolContext, *, timeout: float | None, details: bool
) -> object:
    """What the tool returns. Every failure is a `ToolError` with a text for the model."""
    require_arguments(context.call.arguments, tool.parameters, who=tool.name)
    try:
        return await _within(timeout, tool, context)
    except ToolError:
        raise
    except asyncio.CancelledError as error:
        if _is_ours():
            raise
        raise ToolError(f"{tool.name} was cancelled before it had finished.") from error
    except Exception as error:
        raise _failed(tool.name, error, details=details) from error


async def surround(
    around: AroundTool | None,
    context: ToolContext,
    proceed: Callable[[ToolContext], Awaitable[object]],
    *,
    details: bool,
) -> object:
    """What `around` makes of a call. Every failure is a `ToolError` with a text for the model."""
    if around is None:
        return await proceed(context)
    try:
        return await around(context, proceed)
    except ToolError:
        raise
    except Exception as error:
        raise _failed(context.call.name, error, details=details) from error


def _failed(name: str, error: Exception, *, details: bool) -> ToolError:
    logger.warning("Tool %s failed", name, exc_info=error)
    what = f": {type(error).__name__}: {_words(error)}" if details else ""
    return ToolError(f"{name} failed{what}")


def _is_ours() -> bool:
    """Whether it is this task that somebody cancels, and not something that the tool waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a broken __str__
        return "(no text)"


async def _within(timeout: float | None, tool: CallableTool, context: ToolContext) -> object:
    task = asyncio.ensure_future(_call(tool, context))
    try:
        await asyncio.wait({task}, timeout=timeout)
        if task.done():
            return task.result()
        await _stop(task, context)
    except asyncio.CancelledError:
        await _stop(task, context)
        raise
    finally:
        context.stopped.set()
    if task.done() and not task.cancelled() and task.exception() is None:
        return task.result()
    runs_on = not task.done() or not tool.interruptible
    state = "can't be stopped: it may still be running" if runs_on else "was stopped"
    raise ToolError(f"{tool.name} did not finish within {timeout:g} s and {state}.")


async def _call(tool: CallableTool, context: ToolContext) -> object:
    try:
        return await tool.call(context.call.arguments, context)
    except SystemExit as error:
        # It would leave the loop, and stop it for all.
        raise RuntimeError(f"the tool tried to end the program: {error}") from error


async def _stop(task: asyncio.Task[object], context: ToolContext) -> None:
    context.stopped.set()
    task.cancel()
    task.add_done_callback(retrieve_exception)
    await asyncio.wait({task}, timeout=_GRACE)


_LIMIT: Final = 3


class RepeatedFailures:
    """Counts, over the rounds of a turn, how often a call has failed with the same words."""

    def __init__(self, *, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._failures: dict[tuple[str, str], tuple[str, int]] = {}

    def record_success(self, call: ToolCall) -> None:
        """Forget that the call ever failed."""
        self._failures.pop((call.name, call.arguments), None)

    def record_failure(self, call: ToolCall, text: str) -> str:
        """The failure's text; at the limit the model is told to stop."""
        key = (call.name, call.arguments)
        before, times = self._failures.get(key, (text, 0))
        times = times + 1 if before == text else 1
        self._failures[key] = text, times
        if times < self._limit:
            return text
        return (
            f"{text}\n\nThis same call has now failed {times} times with the same error. Don't "
            "make it again: change the arguments, take another tool, or answer without it."
        )
