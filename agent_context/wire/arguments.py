"""The arguments of a call as every server takes them: the text of one JSON object."""

from __future__ import annotations

import json
from typing import cast

import orjson

from agent_context.wire.lenient_json import whole_characters

__all__ = ["INVALID_ARGUMENTS", "is_object", "to_object_text"]

INVALID_ARGUMENTS = "invalid_arguments"
"""The only key of what is sent for arguments that are no JSON object; its value is their text."""

_NOTHING = ("", "null", '""')


def to_object_text(text: str) -> str:
    """`text` if it is a JSON object by the standard, else one that says the same.

    Models write raw control characters, NaN, JSON within a JSON string, half an object. Servers
    that parse what they are sent refuse each later request then.
    """
    if is_object(text):
        return text
    text = text.strip().removeprefix("\ufeff")
    if text in _NOTHING:
        return "{}"
    value = _read(text)
    if isinstance(value, str):
        value = _read(value)
    if isinstance(value, dict):
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if is_object(written):
            return written
    return orjson.dumps({INVALID_ARGUMENTS: text}).decode()


def is_object(text: str) -> bool:
    """Whether the JSON text is a whole object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _read(text: str) -> object:
    """The value, as far as a tolerant reader finds one; None if it finds none."""
    try:
        value = cast("object", json.loads(text, strict=False, parse_constant=str))
        return json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        return None
