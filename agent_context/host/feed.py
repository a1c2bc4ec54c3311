"""What a store's change feed tells, in the words of conversations."""

from __future__ import annotations

from msgspec import Struct

from agent_context.conversation.log import said_in
from agent_context.messages import Message
from agent_context.stores.store import Fed

__all__ = ["Told", "told"]


class Told(Struct, frozen=True):
    """One change of one conversation, whoever made it and whenever."""

    position: int
    """In the feed: what the next page comes after."""
    conversation_id: str
    seq: int
    """The number of the change in its conversation."""
    at: float
    """When: Unix seconds."""
    how: str
    """The kind of the change, as `appended`."""
    messages: tuple[Message, ...]
    """What it brought; what it took away is in the conversation's history."""


def told(fed: Fed) -> Told:
    """Raises `StoreCorrupt`."""
    entry = fed.entry
    messages = tuple(record.message for record in said_in(entry))
    return Told(fed.position, fed.conversation_id, entry.seq, entry.at, entry.kind, messages)
