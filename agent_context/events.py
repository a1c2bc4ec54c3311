"""The events that a conversation announces: one for each change, in order."""

from __future__ import annotations

from msgspec import Struct

from agent_context.messages import Message, TurnUsage
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
    "Recalled",
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
    """The number of the event in its conversation: from 1, without gaps."""
    version_before: int
    version_after: int
    """The zones' version; the same as before when the event changed no zone."""


class Appended(_Change, frozen=True, kw_only=True):
    """A message was added at the end of the incremental zone."""

    index: int
    message: Message
    turn: TurnUsage | None = None
    """What a turn used that this is the answer of."""


class Extended(_Change, frozen=True, kw_only=True):
    """Messages were added at the end, all at once; `index` is the first one's."""

    index: int
    messages: tuple[Message, ...]


class Inserted(_Change, frozen=True, kw_only=True):
    """A message was put before the one at `index`."""

    index: int
    message: Message
    turn: TurnUsage | None = None
    """What a turn used that this is the answer of."""


class Updated(_Change, frozen=True, kw_only=True):
    """A message was replaced; its id stayed."""

    index: int
    old: Message
    new: Message


class Removed(_Change, frozen=True, kw_only=True):
    """The message at `index` was removed."""

    index: int
    message: Message


class Popped(_Change, frozen=True, kw_only=True):
    """The last message was removed by `Pop`."""

    message: Message


class Retained(_Change, frozen=True, kw_only=True):
    """Messages were removed by `Retain`."""

    removed: tuple[Message, ...]


class Cleared(_Change, frozen=True, kw_only=True):
    """The incremental zone was emptied."""

    removed: tuple[Message, ...]


class Compressed(_Change, frozen=True, kw_only=True):
    """The history was compressed."""

    removed: tuple[Message, ...]
    """What left the compressed and incremental zones."""
    summary: Message | None
    """The new summary; None if the strategy made none."""
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
    """The last rewind was undone; the zones as they are now."""

    compressed: tuple[Message, ...]
    incremental: tuple[Message, ...]


class Cancelled(_Change, frozen=True, kw_only=True):
    """A turn was cancelled. Messages that it stored have events of their own."""

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
    """A request doesn't begin with the last one, so the vendor's prompt cache finds less of it."""

    turn_id: str
    cause: PrefixChangeCause
    fields: tuple[str, ...]
    """The fields of the request that changed, by the vendor's names."""
    at: int | None
    """The first message that differs, as an index of the three zones, concatenated."""
    tokens: int
    """Tokens of the last request that the vendor has to read again."""


class PromptCacheMiss(_Change, frozen=True, kw_only=True):
    """The vendor's cache policy predicted a large hit, and there was almost none."""

    turn_id: str
    predicted: int
    """Tokens that the policy predicted."""
    cached: int
    """Tokens that came from the cache."""


class Recalled(_Change, frozen=True, kw_only=True):
    """A turn sent messages again that a compression had taken away; see `compression.Recall`."""

    turn_id: str
    ids: tuple[str, ...]
    """Of the messages, in the order in which they were said."""
    scores: tuple[float, ...]
    """How well each matched what was said, from 0 to 1; 0 if it only belongs to another's call."""
    words: tuple[str, ...]
    """What was looked for, as stems."""
    tokens: int
    """What they took of the window, together."""


class BackendChanged(_Change, frozen=True, kw_only=True):
    """The next turns use another backend."""

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
    | Recalled
    | BackendChanged
)
