"""What may happen to the zones of a conversation, as values: each is done to them, and announced.

How a change is written down and read again is the business of `log`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, assert_never

from msgspec import Struct

from agent_context import events
from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.messages import Message

__all__ = [
    "Appended",
    "Change",
    "Cleared",
    "Compressed",
    "Extended",
    "Inserted",
    "Loaded",
    "PendingEvent",
    "Popped",
    "Removed",
    "Restored",
    "Retained",
    "Rewound",
    "Updated",
    "ZonePatch",
    "apply",
    "diff_zone",
    "to_event",
    "to_messages",
]

PendingEvent = partial[Any]
"""An event that lacks only its stamp: whose it is, its number, the versions."""

ZonePatch = tuple[StoredMessage | tuple[int, int], ...]
"""A zone as new records and runs of its old ones, each from an index up to another."""


class Appended(Struct, frozen=True):
    record: StoredMessage
    answer: bytes | None = None
    """Of a turn's answer: what its vendor said beside the message, as a JSON object."""


class Extended(Struct, frozen=True):
    records: tuple[StoredMessage, ...]


class Inserted(Struct, frozen=True):
    index: int
    record: StoredMessage
    answer: bytes | None = None


class Updated(Struct, frozen=True):
    index: int
    record: StoredMessage


class Removed(Struct, frozen=True):
    index: int


class Popped(Struct, frozen=True):
    pass


class Retained(Struct, frozen=True):
    kept: ZonePatch


class Cleared(Struct, frozen=True):
    pass


class Rewound(Struct, frozen=True):
    to: int


class Restored(Struct, frozen=True):
    zones: Zones
    """As they were before the last rewind."""


class Compressed(Struct, frozen=True):
    compressed: ZonePatch
    incremental: ZonePatch
    summary: StoredMessage | None


class Loaded(Struct, frozen=True):
    zones: Zones


Change = (
    Appended
    | Extended
    | Inserted
    | Updated
    | Removed
    | Popped
    | Retained
    | Cleared
    | Rewound
    | Restored
    | Compressed
    | Loaded
)


def apply(change: Change, zones: Zones) -> Zones:
    """The zones afterwards. Raises `IndexOutOfRange`."""
    match change:
        case Appended(record):
            return zones.append(record)
        case Extended(records):
            return zones.extend(records)
        case Inserted(index, record):
            return zones.insert(index, (record,))
        case Updated(index, record):
            return zones.update(index, record)
        case Removed(index):
            return zones.remove(index)
        case Popped():
            return zones.truncate(len(zones.incremental) - 1)
        case Retained(kept):
            return zones.compress(zones.compressed, patch_zone(zones.incremental, kept))
        case Cleared():
            return zones.truncate(0)
        case Rewound(to):
            return zones.truncate(to)
        case Compressed(compressed, incremental):
            return zones.compress(
                patch_zone(zones.compressed, compressed), patch_zone(zones.incremental, incremental)
            )
        case Restored(before) | Loaded(before):
            return before
        case _:
            assert_never(change)


def to_event(change: Change, before: Zones, after: Zones) -> PendingEvent:
    """The event that tells of a change from `before` to `after`."""
    old, new = before.incremental, after.incremental
    match change:
        case Appended(record):
            return partial(events.Appended, index=len(old), message=record.message)
        case Extended(records):
            return partial(events.Extended, index=len(old), messages=to_messages(records))
        case Inserted(index, record):
            return partial(events.Inserted, index=index, message=record.message)
        case Updated(index, record):
            was = old[index].message
            return partial(events.Updated, index=index, old=was, new=record.message)
        case Removed(index):
            return partial(events.Removed, index=index, message=old[index].message)
        case Popped():
            return partial(events.Popped, message=old[len(old) - 1].message)
        case Retained():
            return partial(events.Retained, removed=to_messages(_removed(old, new)))
        case Cleared():
            return partial(events.Cleared, removed=to_messages(old))
        case Rewound(to):
            return partial(events.Rewound, to=to, removed=to_messages(old.tail(to)))
        case Restored():
            compressed = to_messages(after.compressed)
            return partial(events.Restored, compressed=compressed, incremental=to_messages(new))
        case Compressed(summary=summary):
            return partial(
                events.Compressed,
                removed=to_messages(_compressed_away(before, after)),
                summary=summary.message if summary else None,
                kept=to_messages(new),
            )
        case Loaded():
            return partial(
                events.Loaded,
                immutable=to_messages(after.immutable),
                compressed=to_messages(after.compressed),
                incremental=to_messages(new),
            )
        case _:
            assert_never(change)


def to_messages(records: Iterable[StoredMessage]) -> tuple[Message, ...]:
    """The messages as values."""
    return tuple(record.message for record in records)


def diff_zone(old: PersistentVector, new: PersistentVector) -> ZonePatch:
    """`new` in terms of `old`."""
    if new is old:
        return ((0, len(old)),) if len(old) else ()
    places = {id(record): index for index, record in enumerate(old)}
    items: list[StoredMessage | tuple[int, int]] = []
    for record in new:
        place, last = places.get(id(record)), items[-1] if items else None
        if place is None:
            items.append(record)
        elif isinstance(last, tuple) and last[1] == place:
            items[-1] = (last[0], place + 1)
        else:
            items.append((place, place + 1))
    return tuple(items)


def patch_zone(old: PersistentVector, items: ZonePatch) -> PersistentVector:
    if items == ((0, len(old)),):
        return old
    records: list[StoredMessage] = []
    for item in items:
        records += old.tail(item[0])[: item[1] - item[0]] if isinstance(item, tuple) else (item,)
    return PersistentVector.of(records) if records else EMPTY


def _removed(before: PersistentVector, after: PersistentVector) -> tuple[StoredMessage, ...]:
    left = {id(record) for record in after}
    return tuple(record for record in before if id(record) not in left)


def _compressed_away(before: Zones, after: Zones) -> Iterable[StoredMessage]:
    """What was in the zones that may be compressed, and is there no more in any form."""
    left = {record.id for record in (*after.compressed, *after.incremental)}
    were = (*before.compressed, *before.incremental)
    return (record for record in were if record.id not in left)
