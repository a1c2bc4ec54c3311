"""What an import gives: conversations, and what couldn't be read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import orjson

from agent_context._context.stored_message import StoredMessage, with_id
from agent_context.messages import Message, MessageId, new_id

__all__ = [
    "ImportResult",
    "ImportedConversation",
    "Rejected",
    "collect",
    "own_ids",
    "parse_timestamp",
    "raw_of",
    "with_own_ids",
]


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """What was said, as `Extend` takes it."""

    messages: Sequence[Message]
    id: str = ""
    """The source's own; empty if it has none."""
    title: str = ""
    created: datetime | None = None
    times: tuple[datetime | None, ...] = ()
    """When each message was written; empty if the source knows of none."""
    branches: tuple[Sequence[Message], ...] = ()
    """Where it was edited or answered again: its other endings, each from the very beginning."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A piece that could not be read, and is in no conversation unless `why` says so."""

    where: str
    """The place in the source: a line, a row, a message."""
    raw: bytes
    why: str


@dataclass(frozen=True, slots=True)
class ImportResult:
    """All that could be read, and all that couldn't."""

    conversations: tuple[ImportedConversation, ...]
    quarantined: tuple[Rejected, ...] = ()


def collect(pieces: Iterable[ImportedConversation | Rejected]) -> ImportResult:
    """The pieces by what they are; conversations in which nothing is said are left out."""
    found: list[ImportedConversation] = []
    quarantined: list[Rejected] = []
    for piece in pieces:
        if isinstance(piece, Rejected):
            quarantined.append(piece)
        elif piece.messages:
            found.append(piece)
    return ImportResult(tuple(found), tuple(quarantined))


def own_ids(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages; one whose id an earlier one has gets a new one."""
    taken: set[MessageId] = set()
    for message in messages:
        if message.id in taken:
            message = message.model_copy(update={"id": new_id()})  # noqa: PLW2901 - the renamed one
        taken.add(message.id)
        yield message


def with_own_ids(records: Iterable[StoredMessage]) -> Iterator[StoredMessage]:
    """The stored messages; one whose id an earlier one has gets a new one."""
    taken: set[MessageId] = set()
    for record in records:
        yield with_id(record, new_id()) if record.id in taken else record
        taken.add(record.id)


def raw_of(value: object) -> bytes:
    """A piece of a JSON text, written anew."""
    try:
        return orjson.dumps(value)
    except TypeError:  # of a number past 64 bits, which only the standard library writes
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")


def parse_timestamp(value: object) -> datetime | None:
    """A time given in Unix seconds or in ISO 8601; one without a zone is taken as UTC."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None
    return found.replace(tzinfo=UTC) if found is not None and found.tzinfo is None else found
