"""JSON from a model's server, read as far as it can be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

import orjson

__all__ = ["as_count", "as_list", "as_mapping", "loads_lenient", "whole_characters"]


_BOM = b"\xef\xbb\xbf"
_MOST = 2**63 - 1
"""What a store can keep as a number."""

_SPLIT = frozenset(
    {"content", "text", "refusal", "reasoning_content", "reasoning", "arguments", "delta"}
)
"""Fields of a fragment whose text goes on in the next one."""


def loads_lenient(data: bytes, *, fragment: bool = False) -> object:
    """The JSON value. Half a surrogate pair or a bad byte becomes U+FFFD. Raises `ValueError`.

    In a `fragment` of an answer a half stays where the other one may be in the next fragment.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.removeprefix(_BOM).decode("utf-8", "replace")
    try:
        value = json.loads(text, strict=False)
        if fragment:
            return _mended(value, split=False)
        return json.loads(whole_characters(json.dumps(value, ensure_ascii=False)))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _mended(value: object, *, split: bool) -> object:
    """The value with whole characters, but for halves at the ends of texts that may be `split`."""
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {whole_characters(name): _mended(item, split=name in _SPLIT) for name, item in items}
    if isinstance(value, list):
        return [_mended(item, split=split) for item in cast("list[object]", value)]
    if not isinstance(value, str):
        return value
    if not split or len(value) < 2:
        return value if split else whole_characters(value)
    return value[0] + whole_characters(value[1:-1]) + value[-1]


def whole_characters(text: str) -> str:
    """The text, its surrogate pairs joined, with U+FFFD for each half of one."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
    """`value` if it counts something that a store can keep; some servers count in floats."""
    if type(value) is float and math.isfinite(value):
        value = round(value)
    return value if type(value) is int and 0 <= value <= _MOST else None
