"""The seam to a store: what is kept of conversations, and how all but their owner are kept out.

The log of a conversation is the truth: its changes, numbered from 1 without gaps. Whoever claims a
conversation gets a new epoch, and from then on writes of older epochs are refused, in the same
transaction that would have made them. Beside the log stand a snapshot, which only saves time, and
the draft: what is known of the turn that runs, which a later owner finds after a crash.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal

from msgspec import Struct, field

from agent_context.errors import StoreError, StoreUnavailable

__all__ = [
    "KEEP_DRAFT",
    "Claim",
    "ConversationInfo",
    "Entry",
    "FeedEntry",
    "ForkOrigin",
    "HealthCheck",
    "Log",
    "Snapshot",
    "Store",
    "Unchanged",
    "VacuumResult",
    "Write",
    "WriteDelayed",
]


class Unchanged(Enum):
    """Says that a write leaves the draft as it is."""

    UNCHANGED = "unchanged"


KEEP_DRAFT: Final = Unchanged.UNCHANGED


class Entry(Struct, frozen=True, gc=False):
    """One change of one conversation."""

    seq: int
    kind: str
    payload: bytes
    """A JSON object. It comes back byte for byte."""
    timestamp: float
    """When it was accepted: Unix seconds."""
    key: str | None = None
    """The idempotency key of what was asked, on the last entry that it caused."""


class ForkOrigin(Struct, frozen=True):
    """Where a forked conversation began: with what `id` was after its entry `seq`."""

    id: str
    seq: int


class Claim(Struct, frozen=True):
    """The right to write to a conversation, until somebody else claims it."""

    epoch: int
    head: int
    """The number of its last entry; 0 for a new one."""
    draft: bytes | None = None


class Write(Struct, frozen=True, kw_only=True):
    """Entries that are kept together or not at all, and what becomes of the draft with them."""

    conversation_id: str
    epoch: int
    head: int
    """The last entry that the writer knows: `entries` go on from there."""
    entries: tuple[Entry, ...] = ()
    draft: bytes | Literal[Unchanged.UNCHANGED] | None = KEEP_DRAFT


class WriteDelayed(StoreUnavailable):
    """One write can't be kept now, while others can: it is to be tried again."""


class Snapshot(Struct, frozen=True):
    """What a conversation was after its entry `seq`."""

    seq: int
    format: int
    """Of the payload; a reader that doesn't know it reads the log instead."""
    payload: bytes


class Log(Struct, frozen=True):
    """What a conversation is made from: the newest snapshot, and the entries after it."""

    snapshot: Snapshot | None
    entries: Sequence[Entry]
    parent: ForkOrigin | None = None


class FeedEntry(Struct, frozen=True):
    """An entry in the order in which the store took in the entries of all conversations."""

    position: int
    conversation_id: str
    entry: Entry


class ConversationInfo(Struct, frozen=True, kw_only=True):
    """What is known of a conversation without reading it."""

    id: str
    head: int
    created_at: float
    """Unix seconds."""
    updated_at: float
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    owner: str | None = None
    """The node that has claimed it and not released it."""
    parent: ForkOrigin | None = None


class HealthCheck(Struct, frozen=True):
    """One thing that a self-check looked at."""

    name: str
    ok: bool
    text: str


class VacuumResult(Struct, frozen=True):
    """What a vacuum took away."""

    conversations: int = 0
    entries: int = 0


class Store(ABC):
    """Keeps conversations. Its methods block, and any thread may call them.

    They raise `StoreError` and its kinds. `StoreUnavailable` says that trying again may help.
    """

    @abstractmethod
    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        """Become the owner, with a new epoch; the conversation is made if there is none.

        `parent` is kept when it is made. Raises `OwnedByAnotherProcess` while another node owns it,
        `ConversationDeleted` for one that was deleted, and `UnknownConversation` for a parent that
        can't be had as it was then.
        """

    @abstractmethod
    def release(self, conversation_id: str, epoch: int) -> None:
        """Let others claim it at once. Nothing happens if `epoch` is over already."""

    @abstractmethod
    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        """Keep each write or refuse it, all in one transaction, durable when this returns.

        The answer says for each what it was refused for: `Fenced` if `epoch` is over or the
        entries don't follow on `head`, a bare `StoreError` if a key is used already or something
        in it can't be kept, `WriteDelayed` if it can't be kept now and is to be tried again.
        What is refused does not hurt the others. A write that is kept already (same epoch, numbers
        and contents, after a lost connection) counts as kept, as does a draft whose time is over:
        the same epoch has written on. There are no two writes of one conversation in a batch whose
        entries don't follow one another. Raises if nothing at all was kept.
        """

    @abstractmethod
    def save_snapshot(self, conversation_id: str, epoch: int, snapshot: Snapshot) -> None:
        """Keep this in the place of older ones, but for those that forks begin from.

        Raises `Fenced`.
        """

    @abstractmethod
    def load(self, conversation_id: str, *, upto: int | None = None) -> Log:
        """What makes the conversation as it is, or as it was after entry `upto`.

        A deleted one is read by those who load its forks, as far as forks need it. Raises
        `UnknownConversation`, also for a state whose entries a vacuum removed.
        """

    @abstractmethod
    def entries(
        self, conversation_id: str, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> Sequence[Entry]:
        """The log behind entry `after`, oldest first, its parent's not included.

        A deleted conversation is read as `load` reads it. Raises `UnknownConversation`.
        """

    @abstractmethod
    def find_by_key(self, conversation_id: str, key: str) -> Entry | None:
        """The entry with this idempotency key."""

    @abstractmethod
    def feed(self, *, after: int = 0, limit: int = 1000) -> Sequence[FeedEntry]:
        """Entries of all conversations behind a position, in order.

        Nothing ever appears behind a position that was returned.
        """

    @abstractmethod
    def search(self, conversation_id: str, text: str, *, limit: int = 10) -> Sequence[Entry]:
        """Entries whose messages have words of `text`, the best message's first.

        Words are compared by their stems, and found in their parts too: `config` in `loadConfig`
        and `load_config`, and two neighbouring characters in a script without spaces. Any text will
        do. `message_search.search_entries` does this for any store.
        """

    @abstractmethod
    def info(self, conversation_id: str) -> ConversationInfo | None:
        """None for an unknown or deleted conversation."""

    @abstractmethod
    def conversations(self, *, after: str = "", limit: int = 100) -> Sequence[ConversationInfo]:
        """Those with an id greater than `after`, by id; deleted ones left out."""

    @abstractmethod
    def set_metadata(self, conversation_id: str, metadata: Mapping[str, Any]) -> None:
        """Replace the metadata, a JSON object. Raises `UnknownConversation`."""

    @abstractmethod
    def put_attachment(self, conversation_id: str, name: str, payload: bytes | None) -> None:
        """Keep a named attachment, or drop it for None. Raises `UnknownConversation`."""

    @abstractmethod
    def get_attachment(self, conversation_id: str, name: str) -> bytes | None:
        """The attachment, or None."""

    @abstractmethod
    def delete(self, conversation_id: str) -> bool:
        """Leave a tombstone: its owner is fenced and its id is never given out again.

        False if there is no such conversation. What is kept of it goes with the next `vacuum`.
        """

    @abstractmethod
    def vacuum(self, *, before: float | None = None) -> VacuumResult:
        """Remove what deleted conversations left, unless forks need it.

        With `before` (Unix seconds) also entries from before then that a snapshot made needless
        and no fork needs: what they said can't be paged through afterwards.
        """

    @abstractmethod
    def health(self) -> Sequence[HealthCheck]:
        """Look at the store itself: its version and known bugs, schema, speed of a commit."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is held. Harmless if closed."""
