"""JSON from a model's server, read as far as it can be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import orjson

__all__ = ["as_count", "as_list", "as_mapping", "loads_lenient"]


def loads_lenient(data: bytes) -> object:
    """The JSON value. Half a surrogate pair or a bad byte becomes U+FFFD. Raises `ValueError`."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        value = json.loads(data.decode("utf-8", "replace"))
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def as_mapping(value: object, key: str | None = None) -> Mapping[str, Any]:
    """`value`, or what it has under `key`, if that is an object; an empty one otherwise."""
    if key is not None:
        value = as_mapping(value).get(key)
    if type(value) is dict or isinstance(value, Mapping):  # the first is fast, and nearly always so
        return cast("Mapping[str, Any]", value)
    return {}


def as_list(value: object) -> list[object]:
    """`value` if that is a list; an empty one otherwise."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_count(value: object) -> int | None:
    """`value` if it counts something."""
    return value if type(value) is int and value >= 0 else None
