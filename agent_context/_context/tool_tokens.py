"""Token counts of tool definitions, by how a model's template writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

import orjson

from agent_context._context.tokens import counter, overhead_of
from agent_context.models import ModelFacts
from agent_context.tools import Tool

__all__ = ["count_tools", "most_tokens_of_tools"]

# What OpenAI's template adds, after "How to count tokens with tiktoken" of OpenAI's cookbook
# (2024-10), whose figures for gpt-4o agree with those of the API.
_TOOL: Final = 7
_PROPERTIES: Final = 3
_PROPERTY: Final = 3
_ENUM: Final = -3
_CHOICE: Final = 3
_TOOLS_END: Final = 12


def count_tools(tools: Sequence[Tool], facts: ModelFacts) -> int:
    """Tokens of the tools' definitions, and of what the model's template says about them."""
    if not tools:
        return 0
    overhead = overhead_of(facts)
    match overhead.tool_syntax:
        case "json":
            wire = [{"type": "function", "function": _function(tool)} for tool in tools]
            tokens = _count_text(orjson.dumps(wire).decode(), facts.vocabulary)
        case "spaced_json":
            text = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
            tokens = _count_text(text, facts.vocabulary)
        case "outline":
            text = orjson.dumps([_function(tool) for tool in tools]).decode()
            tokens = _count_outline(text, facts.vocabulary)
    return math.ceil((overhead.tools + tokens) * facts.margin)


def most_tokens_of_tools(tools: Sequence[Tool], facts: ModelFacts) -> int:
    """An upper bound that needs no vocabulary."""
    if not tools:
        return 0
    text = json.dumps([_function(tool) for tool in tools], ensure_ascii=False)
    return overhead_of(facts).tools + len(text.encode("utf-8", "replace")) + 40 * len(tools)


@lru_cache(maxsize=64)
def _count_text(text: str, vocabulary: str) -> int:
    return counter(vocabulary).count(text)


@lru_cache(maxsize=64)
def _count_outline(text: str, vocabulary: str) -> int:
    count = counter(vocabulary).count
    tokens = _TOOLS_END
    for tool in orjson.loads(text):
        described = f"{tool['name']}:{_trim(tool.get('description'))}"
        tokens += _TOOL + count(described) + _count_properties(tool.get("parameters"), count)
    return tokens


def _count_properties(schema: object, count: Callable[[str], int]) -> int:
    """Tokens of an object's properties, and of theirs."""
    properties = _mapping(_mapping(schema).get("properties"))
    if not properties:
        return 0
    return _PROPERTIES + sum(
        _count_property(name, _mapping(each), count) for name, each in properties.items()
    )


def _count_property(name: str, schema: Mapping[str, Any], count: Callable[[str], int]) -> int:
    kind = schema.get("type")
    if not isinstance(kind, str):  # `anyOf`, `$ref` and the like: written in some other way
        return _PROPERTY + count(f"{name}:{json.dumps(schema, ensure_ascii=False)}")
    tokens = _PROPERTY + count(f"{name}:{kind}:{_trim(schema.get('description'))}")
    if choices := cast("list[object]", schema.get("enum") or []):
        tokens += _ENUM + sum(_CHOICE + count(str(choice)) for choice in choices)
    return tokens + _count_properties(schema, count) + _count_properties(schema.get("items"), count)


def _trim(description: object) -> str:
    return str(description or "").removesuffix(".")


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _function(tool: Tool) -> dict[str, Any]:
    return tool.model_dump(exclude_none=True)
