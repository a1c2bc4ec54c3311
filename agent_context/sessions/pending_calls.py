"""Calls that wait for somebody's decision, and what was decided on some of them already.

The session's state holds both, so that they go where the session goes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final

from agent_context.messages import Message, Role, ToolCall
from agent_context.tools import ApprovalDecision
from agent_context.tools.approval import Always, distinct_ids
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = [
    "forget_pending",
    "last_open_tool_calls",
    "note_pending",
    "pending_calls",
    "recall_decisions",
]

_KEY: Final = "tool_approvals"


def last_open_tool_calls(messages: Sequence[Message]) -> Message | None:
    """The answer whose calls are the last thing that happened, if not all have a result."""
    results: set[str | None] = set()
    for message in reversed(messages):
        if message.role is Role.TOOL:
            results.add(message.tool_call_id)
        elif message.role is Role.ASSISTANT and message.tool_calls:
            open_ones = {call.id for call in message.tool_calls} - results
            return message if open_ones else None
        else:
            return None
    return None


def note_pending(
    state: MutableMapping[str, Any],
    answer: Message,
    calls: Sequence[ToolCall],
    decisions: Mapping[str, ApprovalDecision],
) -> None:
    """Have the state say which calls of `answer` wait, and what was decided on the others."""
    waiting = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]
    # What was allowed for good is noted elsewhere; for these calls it is a yes.
    plain = {key: True if isinstance(said, Always) else said for key, said in decisions.items()}
    state[_KEY] = {"answer": answer.id, "calls": waiting, "decisions": plain}


def forget_pending(state: MutableMapping[str, Any]) -> None:
    """No call waits any more."""
    state.pop(_KEY, None)


def recall_decisions(state: Mapping[str, Any], answer: Message) -> Mapping[str, ApprovalDecision]:
    """What was decided on calls of this answer."""
    return as_mapping(_noted(state, answer), "decisions")


def pending_calls(state: Mapping[str, Any], messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls that wait, under the ids by which they are decided on."""
    answer = last_open_tool_calls(messages)
    if answer is None:
        return ()
    if noted := as_list(_noted(state, answer).get("calls")):
        return tuple(map(ToolCall.model_validate, noted))
    named = zip(distinct_ids(answer.tool_calls), answer.tool_calls, strict=True)
    return tuple(call.model_copy(update={"id": name}) for name, call in named)


def _noted(state: Mapping[str, Any], answer: Message) -> Mapping[str, Any]:
    noted = as_mapping(state.get(_KEY))
    return noted if noted.get("answer") == answer.id else {}
