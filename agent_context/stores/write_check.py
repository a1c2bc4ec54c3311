"""Which writes a store takes, in the same words whatever keeps the entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

import orjson

from agent_context.errors import (
    ConversationDeleted,
    Fenced,
    InvalidOptions,
    StoreError,
    UnknownConversation,
)
from agent_context.stores.store import Entry, ForkOrigin, Snapshot, Write

__all__ = [
    "MAX_NAME_BYTES",
    "MAX_PAYLOAD_BYTES",
    "WriteStatus",
    "check_attachment",
    "check_snapshot",
    "check_text",
    "check_write",
    "deleted_conversation",
    "encode_metadata",
    "fenced_write",
    "searchable_or_empty",
    "sequence_conflict",
    "state_unavailable",
    "unknown_conversation",
]

MAX_NAME_BYTES: Final = 1024
"""UTF-8 bytes of an id, a key or the name of an attachment: two of them fit PostgreSQL's index."""
MAX_PAYLOAD_BYTES: Final = 64 << 20
"""Bytes of one entry or attachment: one of these delays other conversations by a second."""
MAX_DRAFT_BYTES: Final = 2 * MAX_PAYLOAD_BYTES
"""A draft holds what was asked and what is answered."""
MAX_SNAPSHOT_BYTES: Final = 512 << 20
"""PostgreSQL takes half of the gigabyte that a message of its protocol may have."""

_MARK_BYTES: Final = 64
"""Room for what is put in front of a key to mark it."""
_SHOWN: Final = 80
"""Characters of a name that an error shows."""


class WriteStatus(Enum):
    """What a write is to the conversation that it wants to go to."""

    NEW = "new"
    """It goes on from where the log ends."""
    OLD = "old"
    """Its numbers are taken: kept already, if the same epoch put the same entries there."""


def check_write(write: Write, epoch: int, head: int) -> WriteStatus | StoreError:
    """What becomes of a write to a conversation at `epoch` and `head`, or why it is refused."""
    if write.epoch != epoch:
        return fenced_write(write.conversation_id, write.epoch, epoch)
    last = write.head + len(write.entries)
    if [entry.seq for entry in write.entries] != list(range(write.head + 1, last + 1)):
        return Fenced(f"{_describe(write)}: its entries are not numbered from {write.head + 1} on")
    if error := _unwritable(write):
        return error
    if write.head == head:
        return WriteStatus.NEW
    if last <= head:
        return WriteStatus.OLD
    return Fenced(f"{_describe(write)}: the writer knows of entry {write.head}, the last is {head}")


def fenced_write(conversation_id: str, epoch: int, now: int | None) -> Fenced:
    """The refusal of an epoch that is over; it is `now`, if the conversation is there."""
    if now is None:
        return Fenced(f"conversation {conversation_id} is not there: it was deleted or never made")
    return Fenced(f"conversation {conversation_id}: epoch {epoch} is over, it is {now} now")


def sequence_conflict(write: Write) -> Fenced:
    """The refusal of a write whose numbers are those of other entries."""
    return Fenced(f"{_describe(write)}: its numbers from {write.head + 1} on are other entries'")


def unknown_conversation(conversation_id: str) -> UnknownConversation:
    return UnknownConversation(f"the store has no conversation {conversation_id}")


def deleted_conversation(conversation_id: str) -> ConversationDeleted:
    return ConversationDeleted(
        f"conversation {conversation_id} was deleted: its id is not given out again"
    )


def state_unavailable(point: ForkOrigin) -> UnknownConversation:
    """What to raise for a state that can't be made any more, or never was."""
    return UnknownConversation(
        f"conversation {point.id} can't be had as it was after entry {point.seq}: there is no such"
        " entry, or a vacuum removed it"
    )


def check_text(what: str, value: str) -> str:
    """The value, if every store can keep it as a name. Raises `InvalidOptions`."""
    if error := _unkeepable(value, MAX_NAME_BYTES):
        raise InvalidOptions(f"{what} {_shorten(value)}: {error}")
    return value


def check_attachment(name: str, payload: bytes | None) -> None:
    """Refuse an attachment that a store can't keep. Raises `InvalidOptions`."""
    check_text("attachment", name)
    if payload is not None and (error := _too_large(payload)):
        raise InvalidOptions(f"attachment {name!r}: {error}")


def check_snapshot(conversation_id: str, snapshot: Snapshot) -> None:
    """Refuse a snapshot that a store can't keep. Raises `StoreError`."""
    if error := _too_large(snapshot.payload, MAX_SNAPSHOT_BYTES):
        raise StoreError(f"conversation {conversation_id}: its snapshot: {error}")


def searchable_or_empty(text: str) -> str:
    """What to look up for `text`: itself, or nothing that is there if it is none to be kept."""
    return "" if _unkeepable(text) else text


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """The metadata as JSON. Raises `InvalidOptions`."""
    try:
        encoded = orjson.dumps(dict(metadata))
    except TypeError as error:
        raise InvalidOptions(f"metadata: not a JSON object: {error}") from error
    if too_large := _too_large(encoded):
        raise InvalidOptions(f"metadata: {too_large}")
    return encoded


def _unwritable(write: Write) -> StoreError | None:
    for entry in write.entries:
        if error := _entry_unkeepable(entry):
            return StoreError(f"{_describe(write)}: entry {entry.seq}: {error}")
    if isinstance(write.draft, bytes) and (error := _too_large(write.draft, MAX_DRAFT_BYTES)):
        return StoreError(f"{_describe(write)}: its draft: {error}")
    return None


def _entry_unkeepable(entry: Entry) -> str | None:
    texts: Sequence[str] = (entry.kind,) if entry.key is None else (entry.kind, entry.key)
    errors = (_unkeepable(text, MAX_NAME_BYTES + _MARK_BYTES) for text in texts)
    return next(filter(None, errors), None) or _too_large(entry.payload)


def _unkeepable(text: str, limit: int | None = None) -> str | None:
    if not text or "\0" in text:
        return "an empty text, or one with a NUL, can't be kept"
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"not Unicode text: {error.reason} at {error.start}"
    if limit is not None and size > limit:
        return f"{size:,} bytes are too long, {limit:,} are allowed"
    return None


def _too_large(payload: bytes, limit: int | None = None) -> str | None:
    limit = MAX_PAYLOAD_BYTES if limit is None else limit
    if len(payload) <= limit:
        return None
    return f"{len(payload):,} bytes are too many, {limit:,} are allowed"


def _shorten(value: str) -> str:
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"


def _describe(write: Write) -> str:
    return f"conversation {write.conversation_id}, write of epoch {write.epoch}"
