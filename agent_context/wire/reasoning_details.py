"""OpenRouter's `reasoning_details`: thoughts with signatures, which go back as they came.

Source: openrouter.ai/docs, reasoning tokens (2026).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_context.wire.lenient_json import as_count, as_mapping

__all__ = ["join_details"]

_GROWING = ("text", "summary", "data")


def join_details(fragments: Iterable[object]) -> list[dict[str, Any]]:
    """The blocks that these fragments amount to; those with one index are one block."""
    blocks: list[dict[str, Any]] = []
    by_index: dict[int, dict[str, Any]] = {}
    for fragment in map(as_mapping, fragments):
        index = as_count(fragment.get("index"))
        block = by_index.get(index) if index is not None else None
        if block is None or block.get("type") != fragment.get("type"):
            blocks.append(block := dict(fragment))
            if index is not None:
                by_index[index] = block
            continue
        for name, value in fragment.items():
            grows = name in _GROWING and isinstance(block.get(name), str)
            if value is not None:
                block[name] = block[name] + value if grows else value
    return blocks
