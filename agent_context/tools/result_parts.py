"""What a tool returned, as a model gets to read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from pydantic_core import PydanticSerializationError, to_json

from agent_context.errors import ToolError
from agent_context.messages import ImagePart, Message, OpaquePart, Part, Role, TextPart

__all__ = ["result_message", "to_parts"]

_DONE = "ok"
_NOTHING = "(nothing)"


def result_message(call_id: str, parts: Sequence[Part], value: object = None) -> Message:
    """The message that answers a call; of a `value` that is a message the unknown fields stay."""
    result = Message(role=Role.TOOL, parts=tuple(parts), tool_call_id=call_id)
    extra = value.extra if isinstance(value, Message) else {}
    return result.model_copy(update=extra) if extra else result


def to_parts(value: object) -> tuple[Part, ...]:
    """The parts of the result. Raises `ToolError` for what no model can read."""
    match value:
        case None:
            return _text(_DONE)
        case str():
            return _text(value or _NOTHING)
        case TextPart() | ImagePart() | OpaquePart():
            return (value,)
        case Message():
            return value.parts or _text(_NOTHING)
        case bytes() | bytearray() | memoryview():
            raise ToolError(
                "The tool returned raw bytes, which can't be shown. It may have worked. "
                "Its program must return text, JSON values or parts."
            )
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return _parts(items) or _text(_json(items))
        case _:
            return _text(_json(value))


def _parts(items: Sequence[object]) -> tuple[Part, ...]:
    """Parts with texts between them; nothing if these are not parts but data."""
    kinds = TextPart | ImagePart | OpaquePart
    if not any(isinstance(item, kinds) for item in items):
        return ()
    return tuple(part for item in items for part in to_parts(item))


def _text(text: str) -> tuple[Part, ...]:
    # Half a surrogate pair can't be stored or sent.
    return (TextPart(text=text.encode("utf-8", "replace").decode("utf-8")),)


def _json(value: object) -> str:
    try:
        return to_json(value, inf_nan_mode="strings", fallback=_builtins).decode("utf-8")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        raise ToolError(
            f"The tool returned a {type(value).__name__} that can't be written as JSON ({error}). "
            "It may have worked. Its program must return text, JSON values or parts."
        ) from error


def _builtins(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise ValueError(f"of type {type(value).__name__}")
