"""The arguments of a call: read from what a model wrote, with complaints that it can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import orjson
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_context.errors import ToolError

__all__ = [
    "format_validation_error",
    "normalize_arguments",
    "read_arguments",
    "read_object",
    "require_arguments",
]

M = TypeVar("M", bound=BaseModel)

_LONGEST_VALUE = 100


def read_arguments(text: str, model: type[M], *, who: str) -> M:
    """The arguments of a call of `who`. Raises `ToolError` that says what is wrong and where."""
    return _fit(read_object(text, who=who), model, who)[1]


def normalize_arguments(text: str, model: type[BaseModel] | None = None, *, who: str) -> str:
    """The text of one JSON object that says what a tool makes of `text`, and nothing else.

    Whoever judges a call reads this: JSON in a JSON string is taken out of it, and of a key that
    stands twice only the value that counts is left. Raises `ToolError` for what doesn't fit.
    """
    values = read_object(text, who=who)
    fitting = values if model is None else _fit(values, model, who)[0]
    return text if fitting == values and _is_plain(text) else _dump(fitting)


def _fit(values: dict[str, Any], model: type[M], who: str) -> tuple[dict[str, Any], M]:
    """The values that the model takes, and what it makes of them."""
    try:
        return values, model.model_validate_json(_dump(values))
    except ValidationError as error:
        if (repaired := _unpack(values)) != values:
            try:
                return repaired, model.model_validate_json(_dump(repaired))
            except ValidationError:
                pass
        names = [item.alias or name for name, item in model.model_fields.items()]
        raise ToolError(
            f"The arguments of {who} are wrong:\n{format_validation_error(error, names)}\n"
            "Nothing was done. Call it again with arguments that fit its schema."
        ) from error


def require_arguments(text: str, parameters: Mapping[str, Any], *, who: str) -> None:
    """Refuse a call whose arguments never came: it is none without any.

    Only a tool without parameters can be meant then. Raises `ToolError`.
    """
    if not text.strip() and parameters.get("properties"):
        raise ToolError(
            f"The arguments of {who} never arrived. Nothing was done. Call it again with them; "
            "for none at all write {}."
        )


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
    except (ValueError, RecursionError) as error:  # a number of too many digits is a ValueError
        at = error.pos if isinstance(error, json.JSONDecodeError) else 0
        near = text[max(at - 20, 0) : at + 20]
        raise ToolError(
            f"The arguments of {who} are not valid JSON: {error}, near {near!r}. "
            "Nothing was done. Call it again with one whole JSON object."
        ) from error


def _is_plain(text: str) -> bool:
    """Whether every reader of JSON finds the same object in it."""
    try:
        return isinstance(json.loads(text, object_pairs_hook=_once), dict)
    except ValueError:
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key stands twice")
    return values


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
