"""One call: run within its time, whatever the tool does."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from agent_context.errors import ToolError
from agent_context.tools.base import CallableTool, ToolContext
from agent_context.tools.elsewhere import look_at

__all__ = ["run_tool"]

logger = logging.getLogger(__name__)

_GRACE: Final = 1.0
"""Seconds that a tool has to clean up when it is cancelled; then it is left to itself."""


async def run_tool(
    tool: CallableTool, context: ToolContext, *, timeout: float | None, details: bool
) -> object:
    """What the tool returns. Every failure is a `ToolError` with a text for the model."""
    try:
        return await _within(timeout, tool, context)
    except ToolError:
        raise
    except asyncio.CancelledError as error:
        if _is_ours():
            raise
        raise ToolError(f"{tool.name} was cancelled before it had finished.") from error
    except Exception as error:
        logger.warning("Tool %s failed", tool.name, exc_info=error)
        what = f": {type(error).__name__}: {_words(error)}" if details else ""
        raise ToolError(f"{tool.name} failed{what}") from error


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
    task = asyncio.ensure_future(_called(tool, context))
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


async def _called(tool: CallableTool, context: ToolContext) -> object:
    try:
        return await tool.call(context.call.arguments, context)
    except SystemExit as error:
        # It would leave the loop, and stop it for all.
        raise RuntimeError(f"the tool tried to end the program: {error}") from error


async def _stop(task: asyncio.Task[object], context: ToolContext) -> None:
    context.stopped.set()
    task.cancel()
    task.add_done_callback(look_at)
    await asyncio.wait({task}, timeout=_GRACE)
