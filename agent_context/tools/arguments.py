"""The arguments of a call: read from what a model wrote, with complaints that it can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_context.errors import ToolError

__all__ = ["format_validation_error", "read_arguments", "read_object"]

M = TypeVar("M", bound=BaseModel)

_LONGEST_VALUE = 100


def read_arguments(text: str, model: type[M], *, who: str) -> M:
    """The arguments of a call of `who`. Raises `ToolError` that says what is wrong and where."""
    values = read_object(text, who=who)
    try:
        return model.model_validate_json(_dump(values))
    except ValidationError as error:
        if (repaired := _unpack(values)) != values:
            try:
                return model.model_validate_json(_dump(repaired))
            except ValidationError:
                pass
        names = [item.alias or name for name, item in model.model_fields.items()]
        raise ToolError(
            f"The arguments of {who} are wrong:\n{format_validation_error(error, names)}\n"
            "Nothing was done. Call it again with arguments that fit its schema."
        ) from error


def read_object(text: str, *, who: str) -> dict[str, Any]:
    """The JSON object in `text`; of an empty text an empty one."""
    if not text.strip():
        return {}
    value = _load(text, who)
    if isinstance(value, str):
        # Some models write JSON into a JSON string.
        value = _load(value, who) if value.strip() else None
    if value is None:
        return {}
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    raise ToolError(
        f"The arguments of {who} must be one JSON object; got {_shown(value)}. "
        "Nothing was done. Call it again with an object."
    )


def _load(text: str, who: str) -> object:
    try:
        return cast("object", json.loads(text, strict=False))
    except (json.JSONDecodeError, RecursionError) as error:
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        near = text[max(at - 20, 0) : at + 20]
        raise ToolError(
            f"The arguments of {who} are not valid JSON: {error}, near {near!r}. "
            "Nothing was done. Call it again with one whole JSON object."
        ) from error


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values)


def _unpack(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with lists and objects that were written as strings taken out of them."""
    return {name: _out_of_string(value) for name, value in values.items()}


def _out_of_string(value: object) -> object:
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def format_validation_error(error: ValidationError, names: Sequence[str] = ()) -> str:
    """What is wrong, a line for each complaint: where, what was expected, what came."""
    return "\n".join(f"- {_line(item, names)}" for item in error.errors())


def _line(item: ErrorDetails, names: Sequence[str]) -> str:
    where = ".".join(map(str, item["loc"])) or "value"
    if item["type"] == "missing":
        return f"{where}: is required and missing"
    if item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
        known = f"its arguments are {', '.join(names)}" if names else "it takes none"
        return f"{where}: there is no such argument; {known}"
    return f"{where}: {item['msg']}; got {_shown(item['input'])}"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
