"""A store's change feed, decoded into messages."""

from __future__ import annotations

from msgspec import Struct

from agent_context._actor.changes import to_event_seq
from agent_context._actor.replay import messages_in_entry
from agent_context.messages import Message
from agent_context.stores.store import FeedEntry

__all__ = ["FeedChange", "to_feed_change"]


class FeedChange(Struct, frozen=True):
    """One change of one conversation, whoever made it and whenever."""

    position: int
    """Position in the feed, for `after` of the next page."""
    conversation_id: str
    seq: int
    """The number of the change in its conversation."""
    timestamp: float
    """When: Unix seconds."""
    kind: str
    """The kind of the change, as `appended`."""
    messages: tuple[Message, ...]
    """The messages that it added; those it removed are in the conversation's history."""


def to_feed_change(fed: FeedEntry) -> FeedChange:
    """Raises `StoreCorrupt`."""
    entry = fed.entry
    messages = tuple(record.message for record in messages_in_entry(entry))
    return FeedChange(
        fed.position,
        fed.conversation_id,
        to_event_seq(entry.seq),
        entry.timestamp,
        entry.kind,
        messages,
    )
