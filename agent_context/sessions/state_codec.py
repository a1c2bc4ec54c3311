"""Values of a program's own state as JSON, and back.

What JSON has no word for is an object with the one reserved key, `__type__`. A dict of the program
that has this key, or keys that aren't strings, is written as such an object too, so that whatever
a program keeps comes back as what it was, and nothing else comes back as it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from agent_context.errors import InvalidOptions
from agent_context.messages import Message

__all__ = ["TAG", "decode_state", "encode_state"]

TAG: Final = "__type__"
_KINDS: Mapping[object, Callable[[list[object]], object]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_TEXTS: Mapping[object, Callable[[str], object]] = {
    "float": float,
    "bytes": partial(base64.b64decode, validate=True),
    "datetime": datetime.fromisoformat,
}


def encode_state(value: object, where: str = "state") -> Any:  # noqa: ANN401 - any JSON value
    """`value` as JSON values. Raises `InvalidOptions` that names the place of what can't be."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {TAG: "float", "value": repr(value)}
        case list():
            return _items(cast("list[object]", value), where)
        case dict():
            return _dict(cast("dict[object, object]", value), where)
        case tuple() | set() | frozenset():
            items = [*cast("Iterable[object]", value)]
            kind = next(kind for kind in _KINDS.values() if isinstance(value, cast("type", kind)))
            return {TAG: cast("type", kind).__name__, "items": _items(items, where)}
        case bytes():
            return {TAG: "bytes", "value": base64.b64encode(value).decode("ascii")}
        case datetime():
            return {TAG: "datetime", "value": value.isoformat()}
        case Message():
            return {TAG: "message", "value": value.to_dict()}
        case _:
            raise InvalidOptions(
                f"{where}: a {type(value).__name__} can't be kept: store plain values, or what "
                "makes it anew"
            )


def _items(items: list[object], where: str) -> list[Any]:
    return [encode_state(item, f"{where}[{index}]") for index, item in enumerate(items)]


def _dict(value: dict[object, object], where: str) -> Any:  # noqa: ANN401 - any JSON value
    if TAG in value or not all(isinstance(key, str) for key in value):
        pairs = [
            [encode_state(k, where), encode_state(v, f"{where}[{k!r}]")] for k, v in value.items()
        ]
        return {TAG: "dict", "items": pairs}
    return {key: encode_state(item, f"{where}[{key!r}]") for key, item in value.items()}


def decode_state(value: object, where: str = "state") -> Any:  # noqa: ANN401 - whatever was written
    """What `written` made JSON values of. Raises `InvalidOptions`."""
    if isinstance(value, list):
        items = enumerate(cast("list[object]", value))
        return [decode_state(item, f"{where}[{index}]") for index, item in items]
    if not isinstance(value, Mapping):
        return value
    fields = cast("Mapping[str, object]", value)
    if TAG in fields:
        return _decode_tagged(fields, where)
    return {key: decode_state(item, f"{where}[{key!r}]") for key, item in fields.items()}


def _decode_tagged(fields: Mapping[str, object], where: str) -> object:
    tag, value, items = fields[TAG], fields.get("value"), fields.get("items")
    try:
        if isinstance(value, str) and tag in _TEXTS:
            return _TEXTS[tag](value)
        if isinstance(value, Mapping) and tag == "message":
            return Message.from_dict(cast("Mapping[str, Any]", value))
        if isinstance(items, list) and tag in _KINDS:
            return _KINDS[tag](decode_state(cast("list[object]", items), where))
        if isinstance(items, list) and tag == "dict":
            return dict(decode_state(cast("list[object]", items), where))
    except (ValueError, TypeError) as error:
        raise InvalidOptions(f"{where}: {tag} can't be read: {error}") from error
    raise InvalidOptions(f"{where}: {TAG} {tag!r} is not one of ours, or its value is missing")
