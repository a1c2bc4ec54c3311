"""What callers may write where an agent takes messages, tools and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from msgspec import Struct

from agent_context._validation import check_type
from agent_context.errors import InvalidOptions
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.tools import Tool, tool

__all__ = [
    "FOREIGN_NAMES",
    "RunInput",
    "Said",
    "ToolsInput",
    "to_messages",
    "to_options",
    "to_tools",
    "with_instructions",
]

_One = str | Message | Mapping[str, Any]
RunInput = _One | Iterable[_One]
"""A text of the user, a message, one in chat-completions form, or several of these."""
_OneTool = Tool | Callable[..., Any]
ToolsInput = _OneTool | Iterable[_OneTool]
"""A tool, a function to make one of, or several of these."""

FOREIGN_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "chat_client": "client",
        "chat_options": "options=SendOptions(…)",
        "compaction_strategy": "compression_strategy",
        "context_provider": "context_providers=[…]",
        "default_options": "options=SendOptions(…)",
        "guardrails": "middleware=[input_guardrail(…), output_guardrail(…)]",
        "input_guardrails": "middleware=[input_guardrail(…)]",
        "model_settings": "options=SendOptions(…)",
        "output_guardrails": "middleware=[output_guardrail(…)]",
        "response_format": "run(…, output_type=…)",
        "result_type": "run(…, output_type=…)",
        "system_prompt": "instructions",
        "thread": "session",
        "tokenizer": "token_counter",
    }
)
"""What other libraries call an argument, and what it is called here."""


class Said(Struct, frozen=True):
    """What the caller says in a run."""

    messages: list[Message]
    known_ids: frozenset[str]
    """Of those messages that the caller made, who may have said them before."""


def to_messages(said: RunInput | None) -> Said:
    """Raises `InvalidMessage` and `InvalidOptions`."""
    if said is None:
        items: Iterable[_One] = ()
    elif isinstance(said, str | Message | Mapping):
        items = (cast("_One", said),)
    else:
        items = check_type("messages", said, Iterable)
    made = [(_to_message(item), item) for item in items]
    known = frozenset(message.id for message, item in made if not isinstance(item, str))
    return Said([message for message, _ in made], known)


def _to_message(said: _One) -> Message:
    if isinstance(said, Message):
        return said
    return Message.user(said) if isinstance(said, str) else Message.from_dict(said)


def to_tools(tools: ToolsInput) -> tuple[Tool, ...]:
    """Raises `InvalidOptions` for a function that can't be a tool as it is."""
    if isinstance(tools, Tool) or callable(tools):
        tools = (tools,)
    listed = check_type("tools", tools, Iterable)
    return tuple(item if isinstance(item, Tool) else tool(item) for item in listed)


def with_instructions(options: SendOptions, instructions: str | None) -> SendOptions:
    """The options with these instructions, if there are any."""
    if instructions is None:
        return options
    return options.model_copy(update={"instructions": instructions})


def to_options(options: SendOptions | Mapping[str, Any] | None) -> SendOptions:
    """Raises `InvalidOptions` that names the field."""
    if options is None or isinstance(options, SendOptions):
        return options or SendOptions()
    fields = check_type("options", options, Mapping)
    if unknown := fields.keys() - SendOptions.model_fields.keys():
        name = min(map(str, unknown))
        hint = FOREIGN_NAMES.get(name)
        instead = f": write {hint}" if hint else "; what a vendor alone knows goes into `extra`"
        raise InvalidOptions(f"options: there is no {name!r}{instead}")
    return SendOptions(**fields)
