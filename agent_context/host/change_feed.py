"""A store's change feed, decoded into messages."""

from __future__ import annotations

from msgspec import Struct

from agent_context._actor.changes import to_entry_seq, to_event_seq
from agent_context._actor.replay import messages_in_entry
from agent_context.messages import Message
from agent_context.stores.store import FeedEntry, Store

__all__ = ["FeedChange", "read_changes", "to_feed_change"]


class FeedChange(Struct, frozen=True):
    """One change of one conversation, whoever made it and whenever."""

    position: int
    """Position in the feed, for `after` of the next page; 0 where one conversation was read."""
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


def read_changes(
    store: Store, conversation_id: str, *, after: int, limit: int
) -> tuple[FeedChange, ...]:
    """The changes of one conversation behind the one with this number."""
    entries = store.entries(conversation_id, after=to_entry_seq(after), limit=limit)
    return tuple(to_feed_change(FeedEntry(0, conversation_id, entry)) for entry in entries)
