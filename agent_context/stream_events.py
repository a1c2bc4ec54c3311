"""What arrives while a model answers, and how the pieces become a message."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson
from msgspec import Struct

from agent_context.messages import (
    Completion,
    FinishReason,
    Message,
    Origin,
    Role,
    TextPart,
    ToolCall,
    Usage,
)

__all__ = [
    "Finished",
    "ReasoningDelta",
    "StreamAccumulator",
    "StreamEvent",
    "TextDelta",
    "ToolCallDelta",
    "ToolRoundFinished",
    "ToolRoundStarted",
    "UsageReported",
]


# The garbage collector need not look at deltas: they hold texts, and there are very many.


class TextDelta(Struct, frozen=True, gc=False):
    """More of the answer's text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False):
    """More of the model's reasoning."""

    text: str


class ToolCallDelta(Struct, frozen=True, gc=False):
    """A fragment of a tool call."""

    index: int
    """Which call of this answer, counted from 0."""
    id: str | None = None
    """Set on the first fragment of a call."""
    name: str | None = None
    """Set on the first fragment of a call."""
    arguments: str = ""
    """More of the arguments' JSON text."""
    extra: dict[str, Any] | None = None
    """Further fields of the call, which only its vendor understands."""


class UsageReported(Struct, frozen=True):
    """What the call cost, as the vendor counts."""

    usage: Usage


class ToolRoundStarted(Struct, frozen=True):
    """The model's tool calls are complete; they are run now, or wait for approval."""

    calls: tuple[ToolCall, ...]


class ToolRoundFinished(Struct, frozen=True):
    """All tool calls have results and the model is asked again: more follows."""

    completion: Completion
    """The answer that called the tools."""
    results: tuple[Message, ...]


class Finished(Struct, frozen=True):
    """The end: the whole answer. Nothing follows."""

    completion: Completion


StreamEvent = (
    TextDelta
    | ReasoningDelta
    | ToolCallDelta
    | UsageReported
    | ToolRoundStarted
    | ToolRoundFinished
    | Finished
)


# What servers make calls of when they understand it: DeepSeek's DSML and older tokens, Kimi's, the
# tags of Qwen and GLM, Mistral's, gpt-oss's (reports of hosts that didn't, 2026).
_LEAKED = re.compile(
    r"</?\uff5cDSML\uff5c|<\uff5ctool\u2581calls?\u2581begin\uff5c>|<\|tool_calls?(_section)?_begin\|>"
    r"|<tool_call>\s*(\{|<function=|[\w.-]+\s*<arg_key>)|^\[TOOL_CALLS\]"
    r"|<\|channel\|>commentary to=functions\."
)


_KNOWN = ToolCall.model_fields.keys()


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class StreamAccumulator:
    """Accumulates stream events into a message, in linear time."""

    origin: Origin | None = None
    usage: Usage = field(default_factory=Usage)
    completion: Completion | None = None
    """The whole answer, once `Finished` has been added."""
    _text: list[str] = field(default_factory=list[str])
    _reasoning: list[str] = field(default_factory=list[str])
    _calls: dict[int, _Call] = field(default_factory=dict[int, _Call])

    @staticmethod
    def from_events(
        events: Iterable[StreamEvent], *, origin: Origin | None = None
    ) -> StreamAccumulator:
        """An accumulator of these events."""
        assembly = StreamAccumulator(origin)
        for event in events:
            assembly.add(event)
        return assembly

    def add(self, event: StreamEvent) -> None:
        """Take in the next event."""
        match event:
            case TextDelta(text):
                self._text.append(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case ToolCallDelta():
                self._add_call(event)
            case UsageReported(usage):
                self.usage = usage
            case ToolRoundStarted():
                pass
            case ToolRoundFinished():
                self._reset()
            case Finished(completion):
                self.completion = completion

    def _reset(self) -> None:
        self._text, self._reasoning, self._calls = [], [], {}

    def _add_call(self, delta: ToolCallDelta) -> None:
        call = self._calls.setdefault(delta.index, _Call())
        call.id = call.id or delta.id or ""
        call.name = call.name or delta.name or ""
        call.arguments.append(delta.arguments)
        if delta.extra:
            call.extra |= delta.extra

    @property
    def empty(self) -> bool:
        """Whether nothing that belongs in a message has arrived."""
        return not (any(self._text) or any(self._reasoning) or self._calls)

    def to_message(self, finish_reason: FinishReason | None = None) -> Message:
        """The answer with everything that has arrived, finished calls and unfinished."""
        return self._build_message(self._tool_calls(), finish_reason, interrupted=False)

    def to_interrupted_message(self) -> Message | None:
        """What to keep of an answer that was cut short; None if there is nothing.

        Keeps only tool calls whose arguments are a complete JSON object.
        """
        whole = tuple(call for call in self._tool_calls() if _is_whole(call))
        message = self._build_message(whole, FinishReason.INTERRUPTED, interrupted=True)
        return message if message.parts or message.reasoning or message.tool_calls else None

    def _build_message(
        self, calls: tuple[ToolCall, ...], reason: FinishReason | None, *, interrupted: bool
    ) -> Message:
        text = "".join(self._text)
        return Message(
            role=Role.ASSISTANT,
            parts=(TextPart(text=text),) if text else (),
            reasoning="".join(self._reasoning) or None,
            tool_calls=calls,
            interrupted=interrupted,
            leaked_markup=_LEAKED.search(text) is not None,
            finish_reason=reason,
            origin=self.origin,
        )

    def _tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(
                **{name: value for name, value in call.extra.items() if name not in _KNOWN},
                id=call.id or f"call_{index}",
                name=call.name,
                arguments="".join(call.arguments),
            )
            for index, call in sorted(self._calls.items())
        )


def _is_whole(call: ToolCall) -> bool:
    try:
        return bool(call.name) and isinstance(orjson.loads(call.arguments), dict)
    except orjson.JSONDecodeError:
        return False
