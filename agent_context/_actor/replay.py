"""Changes as entries of a log, and a conversation made of them again.

An entry's payload is a JSON object. A message in it is its `Record.line()`, so that what was said
comes back byte for byte; a part of a zone that a change left alone is a pair of old indexes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, assert_never, cast

import msgspec
import orjson
from msgspec import Raw, Struct
from msgspec.structs import replace

from agent_context import events
from agent_context._actor.changes import (
    Appended,
    Change,
    Cleared,
    Compressed,
    Extended,
    Inserted,
    Loaded,
    PendingEvent,
    Popped,
    Removed,
    Restored,
    Retained,
    Rewound,
    Updated,
    ZonePatch,
    apply,
)
from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage, from_line
from agent_context._context.zones import Zones
from agent_context.errors import StoreCorrupt, UsageError
from agent_context.messages import Completion, Message
from agent_context.stores.store import Entry

__all__ = [
    "CREATED",
    "ConversationState",
    "ForkPoint",
    "advance",
    "decode_completion",
    "decode_created",
    "encode_change",
    "encode_completion",
    "encode_created",
    "encode_event",
    "encode_forked",
    "messages_in_entry",
    "replay",
]

T = TypeVar("T")

CREATED: Final = "begun"
"""The first entry of every log."""

_EVENT_KINDS: Final[Mapping[Callable[..., object], str]] = {
    events.BackendChanged: "backend_changed",
    events.Cancelled: "cancelled",
    events.PromptCacheMiss: "cache_missed",
    events.PromptPrefixChanged: "prefix_broken",
    events.TurnFailed: "turn_failed",
    events.TurnLost: "turn_lost",
}

NON_MUTATING_KINDS: Final = frozenset(_EVENT_KINDS.values())
"""Entries that change no zone."""


class ConversationState(Struct, frozen=True):
    """What a conversation is after so many entries."""

    zones: Zones
    seq: int = 0
    version: int = 0
    compressions: int = 0
    undo: Zones | None = None
    """The zones before the last rewind, if it can be taken back."""


class ForkPoint(Struct, frozen=True):
    """Where a conversation branched off."""

    parent: str
    seq: int
    at: int | None


class _Form(Struct):
    """All that a payload may hold."""

    parent: str | None = None
    seq: int = 0
    at: int | None = None
    message: Raw = Raw()
    messages: list[Raw] = []
    answer: Raw = Raw()
    index: int = 0
    to: int = 0
    kept: list[Raw] = []
    summary: str | None = None
    immutable: list[Raw] = []
    compressed: list[Raw] = []
    incremental: list[Raw] = []


def encode_change(change: Change) -> tuple[str, bytes]:
    """The kind and payload of a change."""
    kind = type(change).__name__.lower()
    match change:
        case Appended(record, answer) | Inserted(record=record, answer=answer):
            place = {"index": change.index} if isinstance(change, Inserted) else {}
            return kind, _object(place, message=record.to_json_line(), answer=answer)
        case Updated(index, record):
            return kind, _object({"index": index}, message=record.to_json_line())
        case Extended(records):
            return kind, _object({}, messages=_list(records))
        case Removed(index):
            return kind, orjson.dumps({"index": index})
        case Rewound(to):
            return kind, orjson.dumps({"to": to})
        case Popped() | Cleared() | Restored():
            return kind, b"{}"
        case Retained(kept):
            return kind, _object({}, kept=_list(kept))
        case Compressed(compressed, incremental, summary):
            named = {"summary": summary.id} if summary else {}
            return kind, _object(
                named, compressed=_list(compressed), incremental=_list(incremental)
            )
        case Loaded(zones):
            return kind, _zones(zones)
        case _:
            assert_never(change)


def encode_created(zones: Zones) -> tuple[str, bytes]:
    """The entry that a conversation begins with."""
    return CREATED, _zones(zones)


def encode_forked(parent: str, seq: int, at: int | None) -> tuple[str, bytes]:
    """The same of one that begins with `parent` after its entry `seq`, cut back to `at`."""
    return CREATED, orjson.dumps({"parent": parent, "seq": seq, "at": at})


def _object(fields: Mapping[str, object], **raw: bytes | None) -> bytes:
    start = orjson.dumps(fields)[:-1]
    named = (b'"%s":%s' % (name.encode(), value) for name, value in raw.items() if value)
    return start + (b"," if fields else b"") + b",".join(named) + b"}"


def _list(items: Iterable[StoredMessage | tuple[int, int]]) -> bytes:
    each = (i.to_json_line() if isinstance(i, StoredMessage) else orjson.dumps(i) for i in items)
    return b"[" + b",".join(each) + b"]"


def _zones(zones: Zones) -> bytes:
    parts = {
        name: _list(getattr(zones, name)) for name in ("immutable", "compressed", "incremental")
    }
    return _object({}, **parts)


def encode_event(event: PendingEvent) -> tuple[str, bytes]:
    """The kind and payload of what is announced and changes no zone."""
    return _EVENT_KINDS[event.func], orjson.dumps(event.keywords, default=_plain)


def _plain(value: object) -> object:
    return value.id if isinstance(value, Message) else _words(value)


def _words(value: object) -> str:
    """What it says, as far as that can be written down."""
    try:
        return str(value).encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - a vendor's error that can't be told still ends its turn
        return type(value).__name__


def decode_created(entry: Entry) -> Zones | ForkPoint:
    """What the conversation of this first entry began with. Raises `StoreCorrupt`."""
    form = _form(entry)
    if form.parent is not None:
        return ForkPoint(form.parent, form.seq, form.at)
    return _understood(entry, lambda: _zones_of(form))


def replay(moment: ConversationState, entries: Iterable[Entry]) -> ConversationState:
    """The moment after these entries, which follow it. Raises `StoreCorrupt`."""
    for entry in entries:
        if entry.seq != moment.seq + 1:
            raise StoreCorrupt(f"entry {entry.seq} follows entry {moment.seq}: some are missing")
        moment = _read(moment, entry)
    return moment


def _read(moment: ConversationState, entry: Entry) -> ConversationState:
    if entry.kind in NON_MUTATING_KINDS:
        return replace(moment, seq=entry.seq)
    form = _form(entry)
    return _understood(entry, lambda: advance(moment, _change(entry.kind, form, moment)))


def _form(entry: Entry) -> _Form:
    return _understood(entry, lambda: msgspec.json.decode(entry.payload, type=_Form))


def _understood(entry: Entry, reading: Callable[[], T]) -> T:
    try:
        return reading()
    except (msgspec.MsgspecError, UsageError, ValueError, LookupError, TypeError) as error:
        raise StoreCorrupt(f"entry {entry.seq} ({entry.kind}) can't be read: {error}") from error


def advance(moment: ConversationState, change: Change) -> ConversationState:
    """The moment after a change."""
    undo = moment.undo
    if isinstance(change, Rewound):
        undo = moment.zones
    elif isinstance(change, Restored | Loaded):
        undo = None
    return ConversationState(
        apply(change, moment.zones),
        moment.seq + 1,
        moment.version + 1,
        moment.compressions + isinstance(change, Compressed),
        undo,
    )


def _change(kind: str, form: _Form, moment: ConversationState) -> Change:
    match kind:
        case "appended":
            return Appended(_record(form.message))
        case "extended":
            return Extended(tuple(map(_record, form.messages)))
        case "inserted":
            return Inserted(form.index, _record(form.message))
        case "updated":
            return Updated(form.index, _record(form.message))
        case "removed":
            return Removed(form.index)
        case "popped":
            return Popped()
        case "retained":
            return Retained(_items(form.kept))
        case "cleared":
            return Cleared()
        case "rewound":
            return Rewound(form.to)
        case "restored":
            return Restored(moment.undo or moment.zones)
        case "compressed":
            return Compressed(_items(form.compressed), _items(form.incremental), None)
        case "loaded":
            return Loaded(_zones_of(form))
        case _:
            raise ValueError("no such kind is known: a newer version wrote it")


def _record(raw: Raw) -> StoredMessage:
    return from_line(bytes(raw))


def _items(raws: Iterable[Raw]) -> ZonePatch:
    return tuple(_item(bytes(raw)) for raw in raws)


def _item(raw: bytes) -> StoredMessage | tuple[int, int]:
    if not raw.startswith(b"["):
        return from_line(raw)
    start, stop = orjson.loads(raw)
    return start, stop


def _zones_of(form: _Form) -> Zones:
    def zone(raws: list[Raw]) -> PersistentVector:
        return PersistentVector.of(map(_record, raws)) if raws else EMPTY

    return Zones(zone(form.immutable), zone(form.compressed), zone(form.incremental))


def messages_in_entry(entry: Entry) -> tuple[StoredMessage, ...]:
    """The messages that an entry brought into the conversation. Raises `StoreCorrupt`."""
    form = _form(entry)
    raws = (form.message, *form.messages, *form.immutable, *form.compressed, *form.incremental)
    lines = [item for item in map(bytes, raws) if item.startswith(b"{")]
    return _understood(entry, lambda: tuple(map(from_line, lines)))


def encode_completion(completion: Completion) -> bytes:
    """What a vendor said beside the message, as `decode_completion` reads it."""
    fields = completion.model_dump(exclude={"message"}, exclude_none=True)
    return orjson.dumps(fields, default=str)


def decode_completion(entry: Entry) -> dict[str, Any]:
    """What a vendor said beside the message of an entry, if it answered a turn."""
    answer = bytes(_form(entry).answer)
    return cast("dict[str, Any]", orjson.loads(answer)) if answer else {}
