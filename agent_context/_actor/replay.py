"""The log of a conversation: encoding its entries, and replaying them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast

import msgspec
import orjson
from msgspec import Struct
from msgspec.structs import replace

from agent_context import events
from agent_context._actor.changes import (
    CHANGES,
    Change,
    ConversationState,
    PendingEvent,
    advance,
)
from agent_context._actor.payload import PayloadFields, decode_fields, encode_zones
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.errors import StoreCorrupt, UsageError
from agent_context.messages import Completion, Message
from agent_context.stores.store import Entry

__all__ = [
    "CREATED",
    "ForkPoint",
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
"""The kind of the first entry of every log; stored data keeps this word."""

_EVENT_KINDS: Final[Mapping[Callable[..., object], str]] = {
    events.BackendChanged: "backend_changed",
    events.Cancelled: "cancelled",
    events.PromptCacheMiss: "cache_missed",
    events.PromptPrefixChanged: "prefix_broken",
    events.Recalled: "recalled",
    events.TurnFailed: "turn_failed",
    events.TurnLost: "turn_lost",
}
"""Kinds of the entries that change no zone."""

_NON_MUTATING_KINDS: Final = frozenset(_EVENT_KINDS.values())


class ForkPoint(Struct, frozen=True):
    """Where a conversation was forked off."""

    parent: str
    seq: int
    at: int | None


def encode_change(change: Change) -> tuple[str, bytes]:
    """The kind and payload of a change."""
    return change.kind, change.encode()


def encode_event(event: PendingEvent) -> tuple[str, bytes]:
    """The kind and payload of an event that changes no zone."""
    return _EVENT_KINDS[event.func], orjson.dumps(event.keywords, default=_plain)


def encode_created(zones: Zones) -> tuple[str, bytes]:
    """The first entry of a conversation that begins with `zones`."""
    return CREATED, encode_zones(zones)


def encode_forked(parent: str, seq: int, at: int | None) -> tuple[str, bytes]:
    """The first entry of one that begins with `parent` after its entry `seq`, cut back to `at`."""
    return CREATED, orjson.dumps({"parent": parent, "seq": seq, "at": at})


def decode_created(entry: Entry) -> Zones | ForkPoint:
    """What the conversation of this first entry began with. Raises `StoreCorrupt`."""
    fields = _decode(entry)
    if fields.parent is not None:
        return ForkPoint(fields.parent, fields.seq, fields.at)
    return _checked(entry, fields.zones)


def replay(state: ConversationState, entries: Iterable[Entry]) -> ConversationState:
    """The state after these entries, which follow it. Raises `StoreCorrupt`."""
    for entry in entries:
        if entry.seq != state.seq + 1:
            raise StoreCorrupt(f"entry {entry.seq} follows entry {state.seq}: some are missing")
        state = _apply(state, entry)
    return state


def messages_in_entry(entry: Entry) -> tuple[StoredMessage, ...]:
    """The messages that an entry brought into the conversation. Raises `StoreCorrupt`."""
    return _checked(entry, _decode(entry).records)


def encode_completion(completion: Completion) -> bytes:
    """Encode what a vendor reported beside the message, for `decode_completion`."""
    fields = completion.model_dump(exclude={"message"}, exclude_none=True)
    return orjson.dumps(fields, default=str)


def decode_completion(entry: Entry) -> dict[str, Any]:
    """What a vendor reported beside the message of an entry; empty if the entry is no answer."""
    answer = bytes(_decode(entry).answer)
    return cast("dict[str, Any]", orjson.loads(answer)) if answer else {}


def _apply(state: ConversationState, entry: Entry) -> ConversationState:
    if entry.kind in _NON_MUTATING_KINDS:
        return replace(state, seq=entry.seq)
    kind = CHANGES.get(entry.kind)
    if kind is None:
        raise StoreCorrupt(
            f"entry {entry.seq}: the kind {entry.kind!r} is not known: a newer version wrote it"
        )
    fields = _decode(entry)
    return _checked(entry, lambda: advance(state, kind.decode(fields, state)))


def _decode(entry: Entry) -> PayloadFields:
    return _checked(entry, lambda: decode_fields(entry.payload))


def _checked(entry: Entry, read: Callable[[], T]) -> T:
    try:
        return read()
    except (msgspec.MsgspecError, UsageError, ValueError, LookupError, TypeError) as error:
        raise StoreCorrupt(f"entry {entry.seq} ({entry.kind}) can't be read: {error}") from error


def _plain(value: object) -> object:
    return value.id if isinstance(value, Message) else _to_text(value)


def _to_text(value: object) -> str:
    try:
        return str(value).encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - an error whose text can't be had still ends its turn
        return type(value).__name__
