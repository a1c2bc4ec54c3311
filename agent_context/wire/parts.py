"""Which parts of a user's content a model takes, and what stands in the place of the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent_context.wire.dialect import Dialect
from agent_context.wire.lenient_json import as_mapping

__all__ = ["is_supported", "placeholder_text"]

_DATA = re.compile(r"data:[^,;]+(;[^,;]*)*;base64,")


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
    what = str(part["type"]).removesuffix("_url").removeprefix("input_")
    return f"[{what} left out: it can't be sent to this model]"
