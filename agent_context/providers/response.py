"""What a run gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, cast

from msgspec import Struct
from pydantic import BaseModel
from typing_extensions import TypeVar

from agent_context.messages import Completion, FinishReason, Message, Role, ToolCall, Usage

__all__ = ["AgentResponse", "Diagnostic"]

T = TypeVar("T", default=Any)


class Diagnostic(Struct, frozen=True):
    """Something that went wrong in a run, or was left out of it, without ending it."""

    source: str
    """The `source_id` of a provider, or the name of a tool."""
    phase: str
    text: str
    error: BaseException | None = None


class AgentResponse(Struct, Generic[T], frozen=True, kw_only=True):
    """What a run gave: all that was said in it, and how it ended."""

    messages: Sequence[Message] = ()
    """What the model and the tools said, in order."""
    completion: Completion | None = None
    """The last answer; None if there is none."""
    pending: Sequence[ToolCall] = ()
    """Calls that wait for somebody's approval; see `Agent.run`."""
    value: T = cast("T", None)
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

    def to_dict(self) -> dict[str, Any]:
        """The response as JSON values, for a log or another program; see `Message.to_dict`."""
        return {
            "text": self.text,
            "messages": [message.to_dict() for message in self.messages],
            "finish_reason": self.finish_reason and self.finish_reason.value,
            "pending": [call.model_dump(mode="json") for call in self.pending],
            "value": _to_plain(self.value),
            "session_id": self.session_id,
            "usage": self.usage.model_dump(mode="json", exclude_none=True),
            "diagnostics": [f"{item.source}: {item.text}" for item in self.diagnostics],
        }

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = _FOREIGN_NAMES.get(name)
            instead = f": it is called {hint} here" if hint else ""
            raise AttributeError(f"AgentResponse has no {name!r}{instead}")

    def __str__(self) -> str:
        return self.text


_FOREIGN_NAMES: Final = {
    "all_messages": "session.get_messages()",
    "data": "value",
    "final_output": "text, or value with an output_type",
    "new_messages": "messages",
    "output": "text, or value with an output_type",
    "raw_representation": "completion",
    "response_id": "completion.request_id",
    "usage_details": "usage",
    "user_input_requests": "pending",
}


def _to_plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
