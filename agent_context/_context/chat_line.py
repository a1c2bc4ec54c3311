"""A line of JSON becomes a stored message without a `Message` in between.

Only what needs no judgement is taken here: fields of their own types, in chat-completions form.
For anything else `decode_line` gives None, and `Message` decides what it is, or says what is wrong.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, cast

import msgspec
import orjson
from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError

from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zone
from agent_context.messages import FinishReason, Role, new_id

__all__ = ["decode_fields", "decode_line"]


class _Text(Struct, tag="text", forbid_unknown_fields=True, gc=False):
    text: str


class _ImageUrl(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    url: str
    detail: str | None = None
    width: int | None = None
    height: int | None = None


class _Image(Struct, tag="image_url", forbid_unknown_fields=True, gc=False):
    image_url: _ImageUrl


class _Function(Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str = "{}"


class _Call(Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function


class _Origin(Struct, forbid_unknown_fields=True, gc=False):
    vendor: str
    model: str = ""


class _Line(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A line; its fields stand in the order of a stored message's body."""

    role: Role
    content: str | list[_Text | _Image] | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    interim: bool = False
    interrupted: bool = False
    leaked_markup: bool = False
    finish_reason: FinishReason | None = None
    origin: _Origin | None = None
    id: Annotated[str, Meta(min_length=1)] | UnsetType = UNSET
    zone: Zone | None = None
    reasoning_content: str | None = None


_decoder: Final = msgspec.json.Decoder(_Line)
_encode: Final = msgspec.json.Encoder().encode
_FIELDS: Final = frozenset(_Line.__struct_fields__)


def decode_line(line: str | bytes) -> tuple[Zone | None, StoredMessage] | None:
    """The message of a line and the zone that the line names; None if it needs a closer look."""
    try:
        return _store(_decoder.decode(line), b"")
    except ValidationError:
        pass  # perhaps a field that isn't known: such are kept
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    try:
        fields = orjson.loads(line)
    except ValueError:
        return None
    return decode_fields(cast("dict[str, Any]", fields)) if isinstance(fields, dict) else None


def decode_fields(fields: dict[str, Any]) -> tuple[Zone | None, StoredMessage] | None:
    """`decode_line` of a line that was parsed already; its unknown fields are kept."""
    known = {name: value for name, value in fields.items() if name in _FIELDS}
    unknown = {name: value for name, value in fields.items() if name not in _FIELDS}
    if "parts" in unknown or "agent_context" in unknown:
        return None
    try:
        line = msgspec.convert(known, _Line)
        extra = orjson.dumps(unknown)[1:-1] if unknown else b""
    except (ValidationError, TypeError, RecursionError):
        return None
    if extra and not (line.content or line.tool_calls or line.reasoning or line.reasoning_content):
        return None  # what it says may stand in a field of another name
    return _store(line, extra)


def _store(line: _Line, extra: bytes) -> tuple[Zone | None, StoredMessage] | None:
    """The line as it is stored; None if its fields don't go together."""
    role, call_id, calls = line.role, line.tool_call_id, line.tool_calls
    if role is Role.TOOL:
        if call_id is None or calls:
            return None
    elif call_id is not None or line.interim or (calls and role is not Role.ASSISTANT):
        return None
    message_id, zone = new_id() if line.id is UNSET else line.id, line.zone
    line.id, line.zone = UNSET, None
    if not isinstance(line.content, str):
        line.content = _simplify(line.content)
    if line.reasoning_content is not None:
        if line.reasoning is not None:
            return None
        line.reasoning, line.reasoning_content = line.reasoning_content, None
    call_ids: tuple[str, ...] = ()
    if calls:
        call_ids = tuple([call.id for call in calls])
    elif call_id is not None:
        call_ids = (call_id,)
    else:
        line.tool_calls = None
    body = _encode(line)
    if extra:
        body = body[:-1] + b"," + extra + b"}"
    return zone, StoredMessage(message_id, role, body, call_ids)


def _simplify(content: list[_Text | _Image] | None) -> str | list[_Text | _Image]:
    if not content:
        return ""
    first = content[0]
    return first.text if len(content) == 1 and isinstance(first, _Text) else content
