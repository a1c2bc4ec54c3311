"""Who may allow a call, and what becomes of one that is not allowed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import cast

from agent_context.messages import Message, ToolCall
from agent_context.tools.threads import in_thread

__all__ = ["Approve", "Decision", "Decisions", "ask", "refusal"]

logger = logging.getLogger(__name__)

Decision = bool | str | Message
"""True: run it. False: don't. A text: don't, and that is why. A message: that is its result."""

Decisions = Mapping[str, Decision]
"""Decisions by the ids of the calls."""

Approve = Callable[[ToolCall], Decision | Awaitable[Decision | None] | None]
"""Decides at once, or says None to leave it open. A synchronous function runs on a thread."""


async def ask(approve: Approve, call: ToolCall) -> Decision | None:
    """What `approve` says. If it fails, nothing is decided."""
    try:
        answer: object
        if inspect.iscoroutinefunction(approve):
            answer = approve(call)
        else:
            answer = await in_thread(partial(approve, call))
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception:
        logger.exception("Nobody decided on a call of %s", call.name)
        return None
    return cast("Decision | None", answer)


def refusal(name: str, decision: bool | str) -> str:  # noqa: FBT001 - a decision
    """What the model is told of a call that was not allowed."""
    why = decision if isinstance(decision, str) else ""
    reason = f" The reason: {why}" if why else ""
    return f"The call of {name} was not allowed, and nothing was done.{reason}"
