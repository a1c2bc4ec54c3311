"""What a conversation announces when it changes."""

from __future__ import annotations

from dataclasses import dataclass

from agent_context.messages import Message

__all__ = [
    "Appended",
    "Cancelled",
    "ChangeEvent",
    "Cleared",
    "Compressed",
    "Extended",
    "Inserted",
    "Loaded",
    "Popped",
    "Removed",
    "Retained",
    "Rewound",
    "TurnFailed",
    "Updated",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    conversation_id: str
    seq: int
    """Counts the events of this conversation from 1, without gaps."""
    version_before: int
    version_after: int
    """The zones' version; the same as before when the event changed no zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended(_Change):
    """A message was added at the end of the incremental zone."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(_Change):
    """Messages were added at the end, all at once; `index` is the first one's."""

    index: int
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted(_Change):
    """A message was put before the one at `index`."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated(_Change):
    """A message was replaced; its id stayed."""

    index: int
    old: Message
    new: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed(_Change):
    """The message at `index` was taken out."""

    index: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Popped(_Change):
    """The last message was taken out."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained(_Change):
    """Messages that were not wanted any more were taken out."""

    removed: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared(_Change):
    """The incremental zone was emptied."""

    removed: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed(_Change):
    """The view of the history became smaller."""

    removed: tuple[Message, ...]
    """What left the compressed and the incremental zone."""
    summary: Message | None
    """What stands for it now, if the strategy made a summary."""
    kept: tuple[Message, ...]
    """The incremental zone as it is now, shortened tool results included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(_Change):
    """Messages were imported; the three zones as they are now."""

    immutable: tuple[Message, ...]
    compressed: tuple[Message, ...]
    incremental: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewound(_Change):
    """The incremental zone was cut back to its first `to` messages."""

    to: int
    removed: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(_Change):
    """A turn was cut short on somebody's wish. What it leaves has an event of its own."""

    turn_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFailed(_Change):
    """A turn ended with an error."""

    turn_id: str
    error: BaseException


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
    | Cancelled
    | TurnFailed
)
