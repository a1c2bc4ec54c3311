"""A model and a tool loop whose every word follows from what was said: for processes that die."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent_context import Completion, Message, Role, ToolCall
from agent_context._context.stored_message import StoredMessage
from agent_context.backend import Request
from agent_context.tools.loop import ToolRound
from agent_context.wire.dialect import Dialect
from agent_context.wire.repair import repair_history
from agent_context_backends.scripted import ScriptedBackend, ScriptItem
from tests.wire.rules import record_faults

__all__ = ["TOOLS", "Echo", "answers", "illegal", "model", "untidy"]

TOOLS = "tools"
"""What is said begins with this word if the model should call a tool for it."""


def model() -> ScriptedBackend:
    """Answers what it is told last, for ever."""
    return ScriptedBackend(answers())


def answers() -> Iterator[ScriptItem]:
    """Its script."""
    while True:
        yield lambda request: answer(request.records[-1])


def answer(last: StoredMessage) -> Message:
    text = last.message.text
    if last.role is not Role.TOOL and text.startswith(TOOLS):
        token = text.split()[-1]
        calls = [ToolCall(id=f"{token}-{i}", name="look", arguments="{}") for i in range(2)]
        return Message.assistant("", tool_calls=calls)
    return Message.assistant(f"re: {text}")


class Echo:
    """Gives every call its own id back."""

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        results = [Message.tool(call.id, call.id) for call in completion.message.tool_calls]
        for result in results:
            done(result)
        return ToolRound(results)


RULES = Dialect(name="strict", vendor="", max_call_id=40)


def illegal(request: Request) -> list[str]:
    """What a chat-completions server would have against the request as it goes out."""
    return record_faults(repair_history(request.records, RULES), RULES)


def untidy(request: Request) -> list[str]:
    """The same of what the conversation itself holds, before anything is repaired for a server."""
    return record_faults(request.records, RULES)
