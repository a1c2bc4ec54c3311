"""JSON schemas as models are told them: the same bytes every time, and nothing said twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind

from agent_context.errors import InvalidOptions

__all__ = ["json_schema", "strict_schema", "strip_titles"]

Schema = dict[str, Any]

_NAMED = ("properties", "$defs", "patternProperties")
"""Keywords whose value holds schemas by names that are not keywords."""
_NESTED = ("items", "additionalProperties", "not", "contains", "propertyNames")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")

# What OpenAI's strict mode takes (platform.openai.com, structured outputs, 2026).
_STRUCTURE = frozenset(
    {"$defs", "$ref", "additionalProperties", "anyOf", "items", "properties", "required", "type"}
)
_BOUNDS = frozenset(
    {"exclusiveMaximum", "exclusiveMinimum", "maximum", "maxItems", "minimum", "minItems"}
)
_STRICT = _STRUCTURE | _BOUNDS | {"const", "description", "enum", "format", "multipleOf", "pattern"}
_STRICT_FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid"}
)


class _Generator(GenerateJsonSchema):
    # A default that JSON can't say is left out; the function has it all the same.
    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - pydantic's
        "skipped-choice",
        "non-serializable-default",
    }

    def encode_default(self, dft: Any) -> Any:  # noqa: ANN401 - as pydantic has it
        value = super().encode_default(dft)
        # A set has another order in each process.
        return sorted(value, key=repr) if isinstance(dft, set | frozenset) else value


def json_schema(kind: Any) -> Schema:  # noqa: ANN401 - a type, or what stands for one
    """The JSON schema of values of a type, without titles. Raises `InvalidOptions`."""
    try:
        schema = TypeAdapter(kind).json_schema(schema_generator=_Generator)
    except PydanticInvalidForJsonSchema as error:
        raise InvalidOptions(f"no JSON schema can be made: {error.message}") from error
    return strip_titles(schema)


def strip_titles(schema: Schema) -> Schema:
    """The schema without titles, which only say the names again."""
    return _map(schema, _without_title)


def _without_title(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in {"title", "$schema"}}


def _map(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """The schema with `change` made in it and in each schema inside, the inner ones first."""
    result: Schema = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            named = cast("Mapping[str, Any]", value)
            result[key] = {name: _each(inner, change) for name, inner in named.items()}
        elif key in _NESTED:
            result[key] = _each(value, change)
        elif key in _LISTED and isinstance(value, list):
            result[key] = [_each(inner, change) for inner in cast("Sequence[Any]", value)]
        else:
            result[key] = value
    return change(result)


def _each(value: Any, change: Callable[[Schema], Schema]) -> Any:  # noqa: ANN401 - JSON
    return _map(cast("Schema", value), change) if isinstance(value, dict) else value


def strict_schema(schema: Schema) -> Schema:
    """The same in the part of JSON schema that vendors hold a model to (OpenAI's strict mode).

    Objects are closed and all their properties required; what the mode has no word for is left
    out, to be checked afterwards. Raises `InvalidOptions`, with the place, for what it can't say.
    """
    for where, problem in _problems(schema, "$"):
        raise InvalidOptions(f"no strict schema: {problem} - at `{where}`")
    return _map(schema, _strict)


def _strict(schema: Schema) -> Schema:
    schema = dict(schema)
    if "oneOf" in schema:
        schema["anyOf"] = schema.pop("oneOf")
    if "allOf" in schema:
        [only] = schema.pop("allOf")
        schema = {**only, **schema}
    if "format" in schema and schema["format"] not in _STRICT_FORMATS:
        del schema["format"]
    schema = {key: value for key, value in schema.items() if key in _STRICT}
    if schema.get("type") == "object":
        properties = schema.setdefault("properties", {})
        schema |= {"required": list(properties), "additionalProperties": False}
    if "$ref" in schema and len(schema) > 1:
        # Nothing may stand beside a reference.
        reference = {"$ref": schema.pop("$ref")}
        return {"anyOf": [reference], **schema}
    return schema


def _problems(schema: Any, where: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - JSON
    if not isinstance(schema, dict):
        return
    schema = cast("Schema", schema)
    if schema.get("additionalProperties", False) is not False:
        yield where, "an object must name all of its keys (no dict, no extra fields)"
    if "prefixItems" in schema:
        yield where, "a tuple of several types can't be said; use a model"
    if len(schema.get("allOf", ())) > 1:
        yield where, "a value can't be of several schemas at once"
    if not schema.keys() & {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}:
        yield where, "a value must have a type"
    for name, inner in _inner(schema):
        yield from _problems(inner, f"{where}.{name}")


def _inner(schema: Schema) -> Iterator[tuple[str, Any]]:
    for key in ("properties", "$defs"):
        yield from cast("Mapping[str, Any]", schema.get(key, {})).items()
    if "items" in schema:
        yield "items", schema["items"]
    for key in _LISTED:
        for index, inner in enumerate(schema.get(key, ())):
            yield f"{key}[{index}]", inner
