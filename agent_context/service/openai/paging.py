"""Lists of items, page by page, as OpenAI gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from agent_context.service.errors import invalid

__all__ = ["ItemOrder", "page_items"]

ItemOrder = Literal["asc", "desc"]


def page_items(
    items: Sequence[dict[str, Any]], *, after: str | None, limit: int, order: ItemOrder
) -> dict[str, Any]:
    """One page of the items, which are given oldest first. Raises `ServiceError` for `after`."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise invalid(f"after: there is no item {after!r}", param="after")
        start = ids.index(after) + 1
    page = ordered[start : start + limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": start + limit < len(ordered),
    }
