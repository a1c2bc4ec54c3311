"""What a tool returned, as a model gets to read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from pydantic_core import PydanticSerializationError, to_json

from agent_context.errors import ToolError
from agent_context.messages import ImagePart, Message, OpaquePart, Part, Role, TextPart

__all__ = ["clean_json", "clean_text", "result_message", "to_parts"]

_SMALLEST = -(1 << 63)
_LARGEST = (1 << 64) - 1
_DONE = "ok"
_NOTHING = "(nothing)"


def result_message(call_id: str, parts: Sequence[Part], value: object = None) -> Message:
    """The message that answers a call; of a `value` that is a message the unknown fields stay.

    Whatever it is made of, it can be stored and sent.
    """
    fields = dict(value.extra) if isinstance(value, Message) else {}
    fields |= {"role": Role.TOOL, "tool_call_id": call_id}
    return Message(parts=tuple(map(_sendable, parts)), **clean_json(fields))


def _sendable(part: Part) -> Part:
    if isinstance(part, TextPart) and not part.model_extra:
        return TextPart(text=clean_text(part.text))
    return type(part).model_validate(clean_json(part.model_dump(exclude_unset=True)))


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
    return (TextPart(text=clean_text(text)),)


def clean_text(text: str) -> str:
    """The text without halves of surrogate pairs, which can't be stored or sent."""
    return text.encode("utf-8", "replace").decode("utf-8")


def clean_json(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """A JSON value that every store and vendor takes: texts whole, numbers within 64 bits."""
    match value:
        case str():
            return clean_text(value)
        case bool():
            return value
        case int() if not _SMALLEST <= value <= _LARGEST:
            return f"{value:#x}"
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            fields = cast("Mapping[object, object]", value)
            return {clean_text(str(key)): clean_json(item) for key, item in fields.items()}
        case list() | tuple():
            return [clean_json(item) for item in cast("Sequence[object]", value)]
        case _:
            return value


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
