"""What the benchmarks talk about: distinct texts, messages, tool histories, a mute model."""

from __future__ import annotations

import random
import string
from collections.abc import AsyncIterator, Iterator

from agent_context.backend import ContextBackend, Request
from agent_context.messages import (
    Completion,
    FinishReason,
    Message,
    Origin,
    Role,
    TextPart,
    ToolCall,
)
from agent_context.stream_events import StreamEvent

__all__ = ["MuteBackend", "answer", "called", "result", "talk", "text", "tool_loop", "tool_turns"]

LENGTH = 200
"""Characters of a text."""

_random = random.Random(1)
_letters = "".join(_random.choices(string.ascii_lowercase + "     ", k=1 << 22))


def text() -> str:
    """200 characters that no other message has."""
    start = _random.randrange(len(_letters) - LENGTH)
    return _letters[start : start + LENGTH]


def answer() -> Message:
    """What a turn stores of a model's answer."""
    return Message(
        role=Role.ASSISTANT,
        parts=(TextPart(text=text()),),
        finish_reason=FinishReason.STOP,
        origin=Origin(vendor="deepseek", model="deepseek-flash"),
    )


def talk(messages: int) -> Iterator[Message]:
    """A user and a model in turn."""
    for index in range(messages):
        yield answer() if index % 2 else Message.user(text())


def called(name: str) -> Message:
    """A model's call of a tool."""
    call = ToolCall(id=name, name="read_file", arguments='{"path": "src/module.py"}')
    return Message.assistant(text(), tool_calls=[call])


def result(name: str) -> Message:
    """What the tool gave back."""
    return Message.tool(name, text())


def tool_loop(messages: int) -> Iterator[Message]:
    """One model at work on its own: call, result, call, result; nobody else speaks."""
    for index in range(messages // 2):
        yield called(f"call_{index}")
        yield result(f"call_{index}")


def tool_turns(messages: int) -> Iterator[Message]:
    """Many turns of five messages: a question, two calls with results each, no more."""
    for index in range(messages // 5):
        yield Message.user(text())
        yield from (called(f"call_{index}a"), result(f"call_{index}a"))
        yield from (called(f"call_{index}b"), result(f"call_{index}b"))


class MuteBackend(ContextBackend):
    """For conversations that never send."""

    async def send(self, request: Request) -> Completion:
        raise NotImplementedError

    def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        raise NotImplementedError
