"""What a run gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from agent_context.messages import Completion, FinishReason, Message, Role, ToolCall, Usage

__all__ = ["AgentResponse", "Diagnostic"]


class Diagnostic(Struct, frozen=True):
    """Something that went wrong in a run, or was left out of it, without ending it."""

    source: str
    """The `source_id` of a provider, or the name of a tool."""
    phase: str
    text: str
    error: BaseException | None = None


class AgentResponse(Struct, frozen=True, kw_only=True):
    """What a run gave: all that was said in it, and how it ended."""

    messages: Sequence[Message] = ()
    """What the model and the tools said, in order."""
    completion: Completion | None = None
    """The last answer; None if there is none."""
    pending: Sequence[ToolCall] = ()
    """Calls that wait for somebody's approval; see `Agent.run`."""
    value: Any = None
    """With an `output_type`: the answer as a value of it."""
    session_id: str | None = None
    usage: Usage = Usage()
    """Of all model calls of the run together."""
    diagnostics: Sequence[Diagnostic] = ()
    """What went wrong beside it. What fails after the run, a provider that keeps history for one,
    is here once `Agent.drain` has returned."""

    @property
    def text(self) -> str:
        """The text of the last answer."""
        return "" if self.completion is None else self.completion.message.text

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the model stopped."""
        return None if self.completion is None else self.completion.finish_reason

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Every call that the model asked for, in order."""
        said = (message for message in self.messages if message.role is Role.ASSISTANT)
        return tuple(call for message in said for call in message.tool_calls)

    def __str__(self) -> str:
        return self.text
