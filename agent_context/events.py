"""What a conversation announces when it changes."""

from __future__ import annotations

from msgspec import Struct

from agent_context.messages import Message
from agent_context.prompt_cache import PrefixChangeCause

__all__ = [
    "Appended",
    "BackendChanged",
    "Cancelled",
    "ChangeEvent",
    "Cleared",
    "Compressed",
    "Extended",
    "Inserted",
    "Loaded",
    "Popped",
    "PromptCacheMiss",
    "PromptPrefixChanged",
    "Removed",
    "Restored",
    "Retained",
    "Rewound",
    "TurnFailed",
    "TurnLost",
    "Updated",
]


class _Change(Struct, frozen=True, kw_only=True):
    conversation_id: str
    seq: int
    """Counts the events of this conversation from 1, without gaps."""
    version_before: int
    version_after: int
    """The zones' version; the same as before when the event changed no zone."""


class Appended(_Change, frozen=True, kw_only=True):
    """A message was added at the end of the incremental zone."""

    index: int
    message: Message


class Extended(_Change, frozen=True, kw_only=True):
    """Messages were added at the end, all at once; `index` is the first one's."""

    index: int
    messages: tuple[Message, ...]


class Inserted(_Change, frozen=True, kw_only=True):
    """A message was put before the one at `index`."""

    index: int
    message: Message


class Updated(_Change, frozen=True, kw_only=True):
    """A message was replaced; its id stayed."""

    index: int
    old: Message
    new: Message


class Removed(_Change, frozen=True, kw_only=True):
    """The message at `index` was taken out."""

    index: int
    message: Message


class Popped(_Change, frozen=True, kw_only=True):
    """The last message was taken out."""

    message: Message


class Retained(_Change, frozen=True, kw_only=True):
    """Messages that were not wanted any more were taken out."""

    removed: tuple[Message, ...]


class Cleared(_Change, frozen=True, kw_only=True):
    """The incremental zone was emptied."""

    removed: tuple[Message, ...]


class Compressed(_Change, frozen=True, kw_only=True):
    """The view of the history became smaller."""

    removed: tuple[Message, ...]
    """What left the compressed and the incremental zone."""
    summary: Message | None
    """What stands for it now, if the strategy made a summary."""
    kept: tuple[Message, ...]
    """The incremental zone as it is now, shortened tool results included."""


class Loaded(_Change, frozen=True, kw_only=True):
    """Messages were imported; the three zones as they are now."""

    immutable: tuple[Message, ...]
    compressed: tuple[Message, ...]
    incremental: tuple[Message, ...]


class Rewound(_Change, frozen=True, kw_only=True):
    """The incremental zone was cut back to its first `to` messages."""

    to: int
    removed: tuple[Message, ...]


class Restored(_Change, frozen=True, kw_only=True):
    """The last rewind was taken back; the zones that it may change, as they are now."""

    compressed: tuple[Message, ...]
    incremental: tuple[Message, ...]


class Cancelled(_Change, frozen=True, kw_only=True):
    """A turn was cut short on somebody's wish. What it leaves has an event of its own."""

    turn_id: str


class TurnFailed(_Change, frozen=True, kw_only=True):
    """A turn ended with an error."""

    turn_id: str
    error: BaseException


class TurnLost(_Change, frozen=True, kw_only=True):
    """A turn was running when its process ended; the conversation was opened again.

    What is known of it was stored before this, each message with an event of its own.
    """

    turn_id: str
    kept: tuple[Message, ...]
    """What was stored: what the turn said, and what had arrived and was noted down."""


class PromptPrefixChanged(_Change, frozen=True, kw_only=True):
    """A request goes out that doesn't begin with what the last one said: a cache finds less."""

    turn_id: str
    cause: PrefixChangeCause
    fields: tuple[str, ...]
    """The fields of the request that changed, in the vendor's words."""
    at: int | None
    """The first message that differs, as an index of the three zones, concatenated."""
    tokens: int
    """What was said in the last request and must be read anew."""


class PromptCacheMiss(_Change, frozen=True, kw_only=True):
    """Much of a request was due from the vendor's cache, and next to nothing came from there."""

    turn_id: str
    predicted: int
    """Tokens that were due."""
    cached: int
    """Tokens that came."""


class BackendChanged(_Change, frozen=True, kw_only=True):
    """From the next turn on the conversation talks to another backend."""

    vendor: str


ChangeEvent = (
    Appended
    | Extended
    | Inserted
    | Updated
    | Removed
    | Popped
    | Retained
    | Cleared
    | Compressed
    | Loaded
    | Rewound
    | Restored
    | Cancelled
    | TurnFailed
    | TurnLost
    | PromptPrefixChanged
    | PromptCacheMiss
    | BackendChanged
)
