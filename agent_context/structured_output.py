"""Structured output: asking a model for a value of a type, and parsing its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from agent_context.errors import InvalidOptions, InvalidOutput
from agent_context.tools.arguments import format_validation_error
from agent_context.tools.schema import json_schema, strict_schema

__all__ = ["output_instructions", "output_schema", "parse_output", "response_format_for"]

T = TypeVar("T")
Schema = dict[str, Any]

_VALUE = "value"
"""The single property of the object that wraps a value that is no object."""
_FENCED = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.DOTALL)
_THOUGHT = re.compile(r"\A.*</think(ing)?>|<think(ing)?>.*?(</think(ing)?>|\Z)", re.DOTALL)
"""Thoughts in the text, closed or not, as servers leave them there that don't know the model."""
_OPENING = re.compile(r"[{\[]")
_MOST_VALUES = 10_000
_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def output_schema(kind: type[Any]) -> Schema:
    """The JSON schema of `kind`, in the subset that vendors enforce.

    A type that is no object is wrapped in one, as its property `value`. Raises `InvalidOptions`,
    with the place, for types that have no strict schema: a dict, a tuple of several types, any
    value at all.
    """
    return strict_schema(_object_schema(kind))


def response_format_for(formats: Collection[str], kind: type[Any]) -> Schema | None:
    """The best `SendOptions.response_format` of those that a backend takes; None if it takes none.

    `formats` are those of `ContextBackend.response_formats`. A type without a strict schema is
    only described to the model.
    """
    if "json_schema" in formats:
        name = _NAME.sub("_", getattr(kind, "__name__", "answer"))[:64]
        try:
            said = {"name": name, "schema": output_schema(kind), "strict": True}
        except InvalidOptions:
            said = {"name": name, "schema": _object_schema(kind), "strict": False}
        return {"type": "json_schema", "json_schema": said}
    return {"type": "json_object"} if "json_object" in formats else None


def output_instructions(formats: Collection[str], kind: type[Any]) -> str | None:
    """Instructions that the model needs besides the format; None if the format suffices."""
    if "json_schema" in formats:
        return None
    schema = json.dumps(_object_schema(kind), ensure_ascii=False, separators=(",", ":"))
    return (
        "Give your final answer as one JSON object that fits this JSON schema, "
        f"and nothing else:\n{schema}"
    )


def parse_output(text: str, kind: type[T]) -> T:
    """Parse the value in an answer, with or without a code fence or words around it.

    Raises `InvalidOutput`, whose text tells the model what to correct.
    """
    if kind is str:
        return cast("T", text)
    adapter, is_object = TypeAdapter(kind), _is_object(json_schema(kind))
    wrong: ValidationError | None = None
    for found in _candidates(text):
        try:
            return adapter.validate_json(json.dumps(_unwrap(found, is_object=is_object)))
        except ValidationError as error:
            wrong = wrong or error
    if wrong is None:
        raise InvalidOutput(_again("- there is no JSON in it"))
    raise InvalidOutput(_again(format_validation_error(wrong))) from wrong


def _again(what: str) -> str:
    return (
        f"The answer is not what was asked for:\n{what}\n"
        "Answer again with one JSON object that fits the schema, and nothing else."
    )


def _candidates(text: str) -> Iterator[object]:
    """The JSON values in an answer, most likely first: what is said last counts.

    What a model thinks aloud before is none of the answer.
    """
    answer = _THOUGHT.sub("", text)
    fenced = _FENCED.findall(answer)
    spans = [
        answer[answer.find(first) : answer.rfind(last) + 1]
        for first, last in ("{}", "[]")
        if first in answer
    ]
    yield from _loaded([text, answer])
    yield from reversed(list(_values(answer)))
    yield from _loaded([*reversed(fenced), *spans])


def _loaded(spans: Iterable[str]) -> Iterator[object]:
    for span in spans:
        try:
            yield json.loads(span, strict=False)
        except (ValueError, RecursionError):
            continue


def _values(text: str) -> Iterator[object]:
    """The objects and lists that stand in a text, in order."""
    decoder, at = json.JSONDecoder(strict=False), 0
    for _ in range(_MOST_VALUES):
        found = _OPENING.search(text, at)
        if found is None:
            return
        try:
            value, at = decoder.raw_decode(text, found.start())
        except RecursionError:
            return
        except ValueError:
            at = found.end()
        else:
            yield value


def _unwrap(found: object, *, is_object: bool) -> object:
    if is_object or not isinstance(found, dict):
        return found
    said = cast("dict[str, object]", found)
    return said[_VALUE] if said.keys() == {_VALUE} else said


def _object_schema(kind: type[Any]) -> Schema:
    schema = _resolve(json_schema(kind))
    if _is_object(schema):
        return schema
    definitions = schema.pop("$defs", None)
    wrapped: Schema = {
        "type": "object",
        "properties": {_VALUE: schema},
        "required": [_VALUE],
        "additionalProperties": False,
    }
    return wrapped if definitions is None else {"$defs": definitions, **wrapped}


def _resolve(schema: Schema) -> Schema:
    """The schema itself, where a recursive type's is only a reference."""
    if (reference := schema.get("$ref")) is None:
        return schema
    found = schema["$defs"][reference.removeprefix("#/$defs/")]
    return {"$defs": schema["$defs"], **found}


def _is_object(schema: Schema) -> bool:
    return _resolve(schema).get("type") == "object"
