"""Tool calls that an earlier run left open: who may go on, and what the others are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_context.conversation import drafts
from agent_context.errors import InvalidOptions
from agent_context.messages import Message, Role, ToolCall

__all__ = ["check_decisions", "closed", "open_answer"]

_NOBODY_ALLOWED = "The call was not carried out: nobody allowed it, and the conversation went on."
_CUT_SHORT = "[interrupted] The run was cut short: whether the call had an effect is not known."


def open_answer(messages: Sequence[Message]) -> Message | None:
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


def check_decisions(decisions: Mapping[str, object], answer: Message | None) -> None:
    """Refuse decisions on calls that don't wait. Raises `InvalidOptions`."""
    waiting = [] if answer is None else [call.id for call in answer.tool_calls]
    if unknown := [call_id for call_id in decisions if call_id not in waiting]:
        waits = f"these wait: {', '.join(waiting)}" if waiting else "none does"
        raise InvalidOptions(f"approvals: no call {', '.join(map(repr, unknown))} waits; {waits}")


def closed(
    calls: Sequence[ToolCall], results: Sequence[Message], *, begun: bool = False
) -> list[Message]:
    """A result for each call: the one that there is, or words that say that there is none."""
    return drafts.results_of(calls, results, _CUT_SHORT if begun else _NOBODY_ALLOWED)
