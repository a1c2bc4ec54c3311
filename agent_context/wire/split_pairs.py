"""Characters whose two UTF-16 halves arrive in two fragments of an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import orjson

from agent_context.messages import Message
from agent_context.stream_events import ReasoningDelta, TextDelta, ToolCallDelta
from agent_context.wire.lenient_json import loads_lenient, whole_characters

__all__ = ["SplitPairs", "mend_extra"]

_HALF = re.compile("[\ud800-\udfff]")


class SplitPairs:
    """Holds the first half of a character back until the second one comes."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[str | int, str] = {}

    def join(self, channel: str | int, text: str) -> str:
        """The text of one fragment, with whole characters alone; U+FFFD for a lost half."""
        if channel not in self._held and (text.isascii() or not _HALF.search(text)):
            return text
        text = self._held.pop(channel, "") + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[channel] = text[-1]
            text = text[:-1]
        return whole_characters(text)

    def join_arguments(self, event: ToolCallDelta) -> ToolCallDelta:
        """The same for the arguments of a call."""
        text = self.join(event.index, event.arguments)
        if text is event.arguments:
            return event
        return ToolCallDelta(event.index, event.id, event.name, text, event.extra)

    def rest(self) -> Iterator[TextDelta | ReasoningDelta | ToolCallDelta]:
        """What stands for the halves that are still held back."""
        for channel in self._held:
            match channel:
                case int():
                    yield ToolCallDelta(channel, arguments="\ufffd")
                case "text":
                    yield TextDelta("\ufffd")
                case _:
                    yield ReasoningDelta("\ufffd")
        self._held = {}


def mend_extra(message: Message) -> Message:
    """The message, with whole characters in its unknown fields too."""
    if not (message.extra or any(call.model_extra for call in message.tool_calls)):
        return message
    fields = message.model_dump()
    try:
        orjson.dumps(fields)
    except TypeError:
        return Message.model_validate(loads_lenient(json.dumps(fields).encode()))
    return message
