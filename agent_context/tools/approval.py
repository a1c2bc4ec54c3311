"""Who may allow a call, and what becomes of one that is not allowed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, cast

from agent_context.errors import InvalidOptions
from agent_context.messages import Message, ToolCall
from agent_context.tools.offload import in_thread

__all__ = [
    "Always",
    "ApprovalCallback",
    "ApprovalDecision",
    "ApprovalDecisions",
    "StandingApprovals",
    "check_approval",
    "distinct_ids",
    "refusal_text",
    "request_decision",
]

logger = logging.getLogger(__name__)


class Always(Enum):
    """Allow a call, and others like it in the rest of the session without asking."""

    THIS_CALL = "this call"
    """Of the same tool with the same arguments."""
    THIS_TOOL = "this tool"
    """Of the same tool with any arguments."""


ApprovalDecision = bool | str | Message | Always
"""True: run it. False: don't. A text: don't, and that is why. A message: that is its result."""

ApprovalDecisions = Mapping[str, ApprovalDecision]
"""Decisions by the ids of the calls; see `distinct_ids` for calls of one message that share one."""

ApprovalCallback = Callable[
    [ToolCall], ApprovalDecision | Awaitable[ApprovalDecision | None] | None
]
"""Decides at once, or says None to leave it open. A synchronous function runs on a thread."""


_STANDING: Final = "standing_approvals"


class StandingApprovals:
    """What was allowed for good, in the state of a session: it goes where the session goes."""

    def __init__(self, state: MutableMapping[str, Any]) -> None:
        self._state = state

    def allows(self, call: ToolCall) -> bool:
        """Whether somebody has allowed this call before, or all calls of its tool."""
        allowed = self._state.get(_STANDING, ())
        return [call.name, None] in allowed or [call.name, call.arguments] in allowed

    def add(self, call: ToolCall, decision: Always) -> None:
        """Allow what `decision` says of this call."""
        entry = [call.name, call.arguments if decision is Always.THIS_CALL else None]
        allowed = self._state.setdefault(_STANDING, [])
        if entry not in allowed:
            allowed.append(entry)


def distinct_ids(calls: Sequence[ToolCall]) -> list[str]:
    """An id for each call of one message: its own, or `id#2` for the second one that has it."""
    given: dict[str, None] = {}
    taken = {call.id for call in calls}
    for call in calls:
        name, number = call.id, 1
        while name in given or (number > 1 and name in taken):
            number += 1
            name = f"{call.id}#{number}"
        given[name] = None
    return list(given)


def check_approval(approve: ApprovalCallback | None) -> ApprovalCallback | None:
    """`approve`, if it can be called or is None. Raises `InvalidOptions`."""
    if approve is None or callable(approve):
        return approve
    raise InvalidOptions(f"approve: a function of a call, not {type(approve).__name__}")


async def request_decision(approve: ApprovalCallback, call: ToolCall) -> ApprovalDecision | None:
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
    return cast("ApprovalDecision | None", answer)


def refusal_text(name: str, decision: bool | str) -> str:  # noqa: FBT001 - a decision
    """What the model is told of a call that was not allowed."""
    why = decision if isinstance(decision, str) else ""
    reason = f" The reason: {why}" if why else ""
    return f"The call of {name} was not allowed, and nothing was done.{reason}"
