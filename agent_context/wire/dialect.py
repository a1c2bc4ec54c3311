"""How one API wants a stored message written, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CONTENT_BLOCKS", "OUTPUT_ITEMS", "Dialect"]

OUTPUT_ITEMS = "output_items"
"""The field of an answer of the Responses API that holds its items as they came.

The message's own fields are what they say. A message whose fields say something else has been
edited, and its items are not used any more.
"""


CONTENT_BLOCKS = "content_blocks"
"""The same for an answer of the Messages API: its blocks, thoughts with their signatures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The rules by which a record becomes a wire message. Equal dialects render equal bytes."""

    name: str
    """Tells dialects apart in caches and reports: the vendor, or the vendor and a variant."""
    vendor: str
    """Reasoning and other things of an origin with this vendor may go back to it."""
    api: Literal["chat", "responses", "messages"] = "chat"
    """What a message becomes: one of chat completions, items of the Responses API, or one of
    Anthropic's Messages API."""
    system_role: str = "system"
    """What a system message is called: `system` or `developer`."""
    late_system_role: str | None = None
    """What a system message is called that isn't the first message; None: as any other."""
    keep_reasoning: bool = False
    """Send the reasoning of messages that came from this vendor back to it."""
    reasoning_field: str = "reasoning_content"
    """The name under which it is sent."""
    backfill_reasoning: bool = False
    """Write an empty one where a message with tool calls has no reasoning that may be sent."""
    empty_reasoning: str = ""
    """What is written there; some servers take an empty one for none."""
    max_call_id: int | None = None
    """Longest id of a tool call that is accepted, in characters; None: any."""
    plain_call_ids: bool = False
    """Ids of calls have letters, digits, `_` and `-` only."""
    unique_call_ids: bool = False
    """No two calls of a request may have one id; otherwise no two of a message."""
    calls_last: bool = False
    """The calls of a message must stand together behind its other items."""
    user_last: bool = False
    """A request that ends with the model's words is refused, or taken for one to go on with."""
    needs_user: bool = False
    """A request without any user message is refused."""
    merge_same_role: bool = False
    """Neighbours of one role, tool messages aside, must be written as one message."""
    names: bool = True
    """Whether a message may carry `name`."""
    images: bool = True
    """Whether a user's content may hold images."""
    image_urls: tuple[str, ...] = ("https://", "http://", "data:")
    """What an image's URL may begin with."""
    other_parts: frozenset[str] | None = None
    """Types of further parts that a user's content may hold; None: any."""

    marks_cache: bool = False
    """Whether breakpoints of the prompt cache are set, where the API wants them said."""
    part_fields: frozenset[str] = frozenset()
    """Further fields that parts may have, such as `cache_control`."""

    @property
    def list_name(self) -> str:
        """The field of a request that holds what was said."""
        return "input" if self.api == "responses" else "messages"
