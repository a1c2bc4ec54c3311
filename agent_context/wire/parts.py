"""Which parts of a user's content a model takes, and what stands in the place of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_context.wire.dialect import Dialect
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["chat_parts", "is_supported", "placeholder_text"]

_DATA = re.compile(r"data:[^,;]+(;[^,;]*)*;base64,")


def chat_parts(content: object) -> list[dict[str, Any]]:
    """The parts of a list of content in the form of chat completions, without empty texts.

    Histories hold those of the Responses API, texts that are null or numbers, and images as mere
    addresses.
    """
    return list(_chat_parts(as_list(content)))


def _chat_parts(content: list[object]) -> Iterator[dict[str, Any]]:
    for part in map(as_mapping, content):
        kind = part.get("type")
        if kind in _TEXTS:
            if (text := _words(part.get(_TEXTS[kind]))).strip():
                rest = {name: value for name, value in part.items() if name not in _KNOWN}
                yield {**rest, "type": "text", "text": text}
        elif kind in {"image_url", "input_image"}:
            yield _image(part)
        elif kind == "input_file":
            yield {"type": "file", "file": {n: v for n, v in part.items() if n != "type"}}
        elif part:
            yield dict(part)


_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_KNOWN = frozenset({"type", "text", "refusal", "annotations", "logprobs"})


def _words(text: object) -> str:
    """A text that may be a number, null, or an object with a `value` (the Assistants API's)."""
    text = as_mapping(text).get("value", text)
    return text if isinstance(text, str) else "" if text is None else str(text)


def _image(part: Mapping[str, Any]) -> dict[str, Any]:
    image = part.get("image_url")
    if isinstance(image, str):
        image = {"url": image}
    told = {**as_mapping(image)}
    if part.get("detail"):
        told.setdefault("detail", part["detail"])
    rest = {n: v for n, v in part.items() if n not in {"type", "image_url", "detail", "file_id"}}
    return {**rest, "type": "image_url", "image_url": told}


def is_supported(part: Mapping[str, Any], dialect: Dialect) -> bool:
    """Whether a part in chat-completions form, which is no text, can be sent."""
    if part["type"] != "image_url":
        return dialect.other_parts is None or part["type"] in dialect.other_parts
    url = as_mapping(part, "image_url").get("url")
    if not dialect.images or not isinstance(url, str):
        return False
    return url.startswith(dialect.image_urls) and bool(_DATA.match(url) or url[:5] != "data:")


def placeholder_text(part: Mapping[str, Any]) -> str:
    """The text that says that a part was left out."""
    what = str(part.get("type") or "part").removesuffix("_url").removeprefix("input_")
    return f"[{what} left out: it can't be sent to this model]"
