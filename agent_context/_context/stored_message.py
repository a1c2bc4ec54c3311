"""A stored message: its bytes, and the few fields that are read all the time.

A zone holds records, not `Message` objects: twenty messages of 200 characters take about 8 kB
and the garbage collector never looks at them. The bytes are the message in chat-completions form
without its id, so that a plain message is copied into a request, a JSONL line or a store as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast, overload

import msgspec
import orjson

from agent_context.errors import InvalidMessage
from agent_context.messages import (
    ImagePart,
    Message,
    MessageId,
    OpaquePart,
    Part,
    Role,
    TextPart,
    ToolCall,
)

__all__ = [
    "StoredMessage",
    "StoredMessages",
    "from_line",
    "from_message",
    "parse_message",
    "with_id",
]


class StoredMessage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One stored message. Records are compared by identity: the same object is the same message."""

    id: MessageId
    role: Role
    body: bytes
    """The message as canonical JSON, without `id`."""
    call_ids: tuple[str, ...] = ()
    """On an assistant message the ids of its calls; on a tool message the one that it answers."""

    @property
    def message(self) -> Message:
        """The message as a value, built anew each time."""
        return Message.model_validate({"id": self.id, **self.fields()})

    @property
    def pin(self) -> tuple[str, str] | None:
        """For a pinned tool result: why it is pinned, and its subject.

        Read from the body, so that other records don't pay for it and no copy loses it.
        """
        # Canonical JSON escapes the quotes of a text, so this is the name of a field. It stands at
        # the end; a search from there is also the faster one where it is not.
        if self.role is not Role.TOOL or self.body.rfind(b'"protected":') < 0:
            return None
        match self.fields():
            case {"protected": str(why), **rest} if why:
                return why, str(rest.get("subject") or self.id)
            case _:
                return None

    @property
    def interim(self) -> bool:
        """Whether this is an interim tool result, to be replaced by a final one."""
        # Searched first, as above; a field of an unknown field may have this name too.
        named = self.role is Role.TOOL and self.body.rfind(b'"interim":true') >= 0
        return named and self.fields().get("interim") is True

    def to_json_line(self, **tags: str) -> bytes:
        """The message as one JSON object that starts with its id and `tags`."""
        return orjson.dumps({"id": self.id, **tags})[:-1] + b"," + self.body[1:]

    def fields(self) -> dict[str, Any]:
        """The body as a dict that the caller may change."""
        return cast("dict[str, Any]", orjson.loads(self.body))


class StoredMessages(Sequence[Message]):
    """Stored messages as a sequence of `Message`s, which are built when somebody reads one."""

    __slots__ = ("_built", "records")

    def __init__(self, records: Iterable[StoredMessage]) -> None:
        self.records: Final = tuple(records)
        self._built: tuple[Message, ...] | None = None

    @property
    def messages(self) -> tuple[Message, ...]:
        """All of them; the same objects each time."""
        if self._built is None:
            self._built = tuple(record.message for record in self.records)
        return self._built

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, StoredMessages | tuple):
            return self.messages == tuple(cast("Sequence[object]", other))
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} messages)"


def from_message(message: Message) -> StoredMessage:
    """Encode a message. Raises `InvalidMessage` if its unknown fields aren't JSON."""
    try:
        body = orjson.dumps(_fields(message))
        message.id.encode()  # a copy may have been given any id
    except (TypeError, AttributeError, UnicodeEncodeError) as error:
        raise InvalidMessage(f"not a message: a field can't be written as JSON: {error}") from error
    calls = tuple(call.id for call in message.tool_calls)
    if message.tool_call_id is not None:
        calls = (message.tool_call_id,)
    # A copy: orjson hands out results in buffers of 4 KiB, which a kept result would keep.
    return StoredMessage(message.id, message.role, bytes(memoryview(body)), calls)


def with_id(record: StoredMessage, message_id: MessageId) -> StoredMessage:
    """The same message under another id."""
    return StoredMessage(message_id, record.role, record.body, record.call_ids)


def from_line(line: bytes) -> StoredMessage:
    """Read what `StoredMessage.to_json_line` wrote without tags. Other input may raise anything."""
    fields: dict[str, Any] = orjson.loads(line)
    start = orjson.dumps({"id": fields["id"]})
    calls = tuple(call["id"] for call in fields.get("tool_calls", ()))
    if "tool_call_id" in fields:
        calls = (fields["tool_call_id"],)
    body = b"{" + line[len(start) :]
    return StoredMessage(fields["id"], Role(fields["role"]), body, calls)


def parse_message(text: str | bytes) -> Message:
    """The message that a JSON object describes, in this library's form or that of chat completions.

    Raises `InvalidMessage`.
    """
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidMessage(f"not JSON: {error}") from error
    return Message.model_validate(fields)


def _fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role.value, "content": _content(message.parts)}
    if message.reasoning is not None:
        fields["reasoning"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    if message.interim:
        fields["interim"] = True
    if message.interrupted:
        fields["interrupted"] = True
    if message.leaked_markup:
        fields["leaked_markup"] = True
    if message.finish_reason is not None:
        fields["finish_reason"] = message.finish_reason.value
    if message.origin is not None:
        fields["origin"] = message.origin.model_dump()
    return _with_extra(fields, message.extra)


def _with_extra(fields: dict[str, Any], extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields, then those that are unknown; of two with one name the known one."""
    return {**fields, **extra, **fields} if extra else fields


def _content(parts: tuple[Part, ...]) -> str | list[dict[str, Any]]:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart) and not parts[0].model_extra:
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return _with_extra({"type": "text", "text": part.text}, part.model_extra)
        case ImagePart():
            image = part.model_dump(exclude={"kind"}, exclude_none=True)
            return {"type": "image_url", "image_url": image}
        case OpaquePart():
            return part.data


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    inner = call.model_extra.get("function") if call.model_extra else None
    if isinstance(inner, Mapping):
        function = _with_extra(function, cast("Mapping[str, Any]", inner))
    fields = {"id": call.id, "type": "function", "function": function}
    return _with_extra(fields, call.model_extra)
