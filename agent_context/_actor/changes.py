"""What can happen to the zones of a conversation: each kind of change is one class.

A change plans itself from the command that asks for it, applies itself to the zones, announces
itself as an event, and encodes and decodes itself as an entry of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Protocol, Self, cast

import orjson
from msgspec import Struct

from agent_context import events
from agent_context._actor.payload import (
    PayloadFields,
    ZonePatch,
    decode_patch,
    decode_record,
    diff_zone,
    encode_list,
    encode_object,
    encode_zones,
    patch_zone,
)
from agent_context._context.jsonl import load_zones
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, with_id
from agent_context._context.zones import Zones
from agent_context._runtime import reentrancy_scope
from agent_context.errors import IndexOutOfRange, InvalidOptions, UsageError
from agent_context.messages import Message, Role, TurnUsage
from agent_context.protocol import (
    Append,
    Clear,
    Command,
    Extend,
    FromJsonl,
    Insert,
    Pop,
    Remove,
    Restore,
    Retain,
    Rewind,
    Update,
)

__all__ = [
    "CHANGES",
    "Appended",
    "Change",
    "Cleared",
    "Compressed",
    "ConversationState",
    "EditCommand",
    "EditContext",
    "Extended",
    "Inserted",
    "Loaded",
    "PendingEvent",
    "PlannedEdit",
    "Popped",
    "Removed",
    "Restored",
    "Retained",
    "Rewound",
    "Updated",
    "advance",
    "check_index",
    "plan_edit",
    "to_event_seq",
    "to_messages",
]

PendingEvent = partial[Any]
"""An event that lacks only its stamp: conversation, number, versions."""

EditCommand = (
    Append | Extend | Insert | Update | Remove | Pop | Retain | Clear | Rewind | Restore | FromJsonl
)


class ConversationState(Struct, frozen=True):
    """The state of a conversation after a given entry of its log."""

    zones: Zones
    seq: int = 1
    """The number of its last entry; the first one is its creation."""
    version: int = 0
    compressions: int = 0
    undo: Zones | None = None
    """The zones before the last rewind, if it can be taken back."""


class EditContext(Protocol):
    """What a change needs to know of the conversation to plan itself."""

    conversation_id: str

    @property
    def current(self) -> ConversationState: ...

    def to_records(self, messages: object, /) -> tuple[StoredMessage, ...]:
        """The messages in their stored form, under ids that the zones don't hold."""
        ...


class PlannedEdit(Struct, frozen=True):
    """The outcome of a command: its change and its reply."""

    change: Change | None
    """None if there is nothing to do."""
    reply: object
    removed: Iterable[StoredMessage] | None = ()
    """What leaves the zones; None if they are replaced as a whole."""


class Change(Struct, frozen=True):
    """Something that happened to the zones."""

    kind: ClassVar[str]
    """How the log calls it: stored data keeps this word."""
    command: ClassVar[type[Command[Any]] | None] = None
    """What asks for it; None if no command does by itself."""

    @classmethod
    def plan(cls, command: Any, context: EditContext) -> PlannedEdit:  # noqa: ANN401 - its own
        """Plan what its command asks for. Changes nothing; raises what is wrong with it."""
        raise NotImplementedError

    def apply(self, zones: Zones) -> Zones:
        """The zones afterwards. Raises `IndexOutOfRange`."""
        raise NotImplementedError

    @property
    def added(self) -> Iterable[StoredMessage]:
        """The messages that it adds, unless it replaces whole zones."""
        return ()

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        """The event that announces it."""
        raise NotImplementedError

    def encode(self) -> bytes:
        """The payload of its entry."""
        return b"{}"

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        """Rebuild the change from the payload that it wrote for a conversation in this state."""
        del fields, state
        return cls()


class Appended(Change, frozen=True):
    kind = "appended"
    command = Append
    record: StoredMessage
    answer: bytes | None = None
    """Of a turn's answer: what its vendor said beside the message, as a JSON object."""
    message: Message | None = None
    """The record as a value, where that is at hand: saves parsing it for the event."""
    turn: TurnUsage | None = None
    """What the turn used that it is the answer of; `answer` says so too."""

    @classmethod
    def plan(cls, command: Append, context: EditContext) -> PlannedEdit:
        (record,) = context.to_records((command.message,))
        return PlannedEdit(cls(record), record.id)

    def apply(self, zones: Zones) -> Zones:
        return zones.append(self.record)

    @property
    def added(self) -> Iterable[StoredMessage]:
        return (self.record,)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        message = self.message or self.record.message
        index = len(before.incremental)
        return partial(events.Appended, index=index, message=message, turn=self.turn)

    def encode(self) -> bytes:
        return encode_object({}, message=self.record.to_json_line(), answer=self.answer)

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(decode_record(fields.message))


class Extended(Change, frozen=True):
    kind = "extended"
    command = Extend
    records: tuple[StoredMessage, ...]

    @classmethod
    def plan(cls, command: Extend, context: EditContext) -> PlannedEdit:
        records = context.to_records(command.messages)
        ids = tuple(record.id for record in records)
        return PlannedEdit(cls(records) if records else None, ids)

    def apply(self, zones: Zones) -> Zones:
        return zones.extend(self.records)

    @property
    def added(self) -> Iterable[StoredMessage]:
        return self.records

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        messages = to_messages(self.records)
        return partial(events.Extended, index=len(before.incremental), messages=messages)

    def encode(self) -> bytes:
        return encode_object({}, messages=encode_list(self.records))

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(tuple(map(decode_record, fields.messages)))


class Inserted(Change, frozen=True):
    kind = "inserted"
    command = Insert
    index: int
    record: StoredMessage
    answer: bytes | None = None
    message: Message | None = None
    turn: TurnUsage | None = None

    @classmethod
    def plan(cls, command: Insert, context: EditContext) -> PlannedEdit:
        index = check_index(command.index)
        (record,) = context.to_records((command.message,))
        return PlannedEdit(cls(index, record), record.id)

    def apply(self, zones: Zones) -> Zones:
        return zones.insert(self.index, (self.record,))

    @property
    def added(self) -> Iterable[StoredMessage]:
        return (self.record,)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        message = self.message or self.record.message
        return partial(events.Inserted, index=self.index, message=message, turn=self.turn)

    def encode(self) -> bytes:
        line = self.record.to_json_line()
        return encode_object({"index": self.index}, message=line, answer=self.answer)

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(fields.index, decode_record(fields.message))


class Updated(Change, frozen=True):
    kind = "updated"
    command = Update
    index: int
    record: StoredMessage

    @classmethod
    def plan(cls, command: Update, context: EditContext) -> PlannedEdit:
        old = _record_at(context, command.index)
        (record,) = context.to_records((command.message,))
        return PlannedEdit(cls(command.index, with_id(record, old.id)), old.message)

    def apply(self, zones: Zones) -> Zones:
        return zones.update(self.index, self.record)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        old, new = before.incremental[self.index].message, self.record.message
        return partial(events.Updated, index=self.index, old=old, new=new)

    def encode(self) -> bytes:
        return encode_object({"index": self.index}, message=self.record.to_json_line())

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(fields.index, decode_record(fields.message))


class Removed(Change, frozen=True):
    kind = "removed"
    command = Remove
    index: int

    @classmethod
    def plan(cls, command: Remove, context: EditContext) -> PlannedEdit:
        old = _record_at(context, command.index)
        return PlannedEdit(cls(command.index), old.message, (old,))

    def apply(self, zones: Zones) -> Zones:
        return zones.remove(self.index)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        message = before.incremental[self.index].message
        return partial(events.Removed, index=self.index, message=message)

    def encode(self) -> bytes:
        return orjson.dumps({"index": self.index})

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(fields.index)


class Popped(Change, frozen=True):
    kind = "popped"
    command = Pop

    @classmethod
    def plan(cls, command: Pop, context: EditContext) -> PlannedEdit:
        length = len(context.current.zones.incremental)
        if not length:
            return PlannedEdit(None, None)
        old = context.current.zones.incremental[length - 1]
        return PlannedEdit(cls(), old.message, (old,))

    def apply(self, zones: Zones) -> Zones:
        return zones.truncate(len(zones.incremental) - 1)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        return partial(events.Popped, message=before.incremental[len(after.incremental)].message)


class Retained(Change, frozen=True):
    kind = "retained"
    command = Retain
    kept: ZonePatch

    @classmethod
    def plan(cls, command: Retain, context: EditContext) -> PlannedEdit:
        zones, keep = context.current.zones, cast("object", command.keep)
        if isinstance(keep, Role):
            after = zones.filter(lambda record: record.role is keep)
        elif callable(keep):
            with reentrancy_scope(context.conversation_id):
                after = zones.filter(lambda record: bool(keep(record.message)))
        else:
            raise InvalidOptions(f"Retain: a role or a predicate, not {type(keep).__name__}")
        removed = _missing(zones.incremental, after.incremental)
        change = cls(diff_zone(zones.incremental, after.incremental)) if removed else None
        return PlannedEdit(change, to_messages(removed), removed)

    def apply(self, zones: Zones) -> Zones:
        return zones.compress(zones.compressed, patch_zone(zones.incremental, self.kept))

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        removed = _missing(before.incremental, after.incremental)
        return partial(events.Retained, removed=to_messages(removed))

    def encode(self) -> bytes:
        return encode_object({}, kept=encode_list(self.kept))

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(decode_patch(fields.kept))


class Cleared(Change, frozen=True):
    kind = "cleared"
    command = Clear

    @classmethod
    def plan(cls, command: Clear, context: EditContext) -> PlannedEdit:
        removed = tuple(context.current.zones.incremental)
        return PlannedEdit(cls() if removed else None, to_messages(removed), removed)

    def apply(self, zones: Zones) -> Zones:
        return zones.truncate(0)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        return partial(events.Cleared, removed=to_messages(before.incremental))


class Rewound(Change, frozen=True):
    kind = "rewound"
    command = Rewind
    to: int

    @classmethod
    def plan(cls, command: Rewind, context: EditContext) -> PlannedEdit:
        incremental, to = context.current.zones.incremental, check_index(command.to)
        if not 0 <= to <= len(incremental):
            raise IndexOutOfRange(to, len(incremental))
        removed = incremental.tail(to)
        return PlannedEdit(cls(to) if removed else None, to_messages(removed), removed)

    def apply(self, zones: Zones) -> Zones:
        return zones.truncate(self.to)

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        removed = to_messages(before.incremental.tail(self.to))
        return partial(events.Rewound, to=self.to, removed=removed)

    def encode(self) -> bytes:
        return orjson.dumps({"to": self.to})

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(fields.to)


class Restored(Change, frozen=True):
    kind = "restored"
    command = Restore
    zones: Zones
    """As they were before the last rewind."""

    @classmethod
    def plan(cls, command: Restore, context: EditContext) -> PlannedEdit:
        before = context.current.undo
        if before is None:
            raise UsageError("Restore: there is no rewind to take back")
        held = {id(record) for record in context.current.zones}
        back = to_messages(record for record in before if id(record) not in held)
        return PlannedEdit(cls(before), back, None)

    def apply(self, zones: Zones) -> Zones:
        return self.zones

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        compressed, incremental = to_messages(after.compressed), to_messages(after.incremental)
        return partial(events.Restored, compressed=compressed, incremental=incremental)

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(state.undo or state.zones)


class Compressed(Change, frozen=True):
    kind = "compressed"
    compressed: ZonePatch
    incremental: ZonePatch
    summary: StoredMessage | None

    @classmethod
    def between(cls, before: Zones, after: Zones, summary: StoredMessage | None) -> Self:
        """The compression that turned `before` into `after`."""
        compressed = diff_zone(before.compressed, after.compressed)
        return cls(compressed, diff_zone(before.incremental, after.incremental), summary)

    def apply(self, zones: Zones) -> Zones:
        compressed = patch_zone(zones.compressed, self.compressed)
        return zones.compress(compressed, patch_zone(zones.incremental, self.incremental))

    @property
    def added(self) -> Iterable[StoredMessage]:
        both = (*self.compressed, *self.incremental)
        return (item for item in both if isinstance(item, StoredMessage))

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        left = {record.id for record in (*after.compressed, *after.incremental)}
        held = (*before.compressed, *before.incremental)
        return partial(
            events.Compressed,
            removed=to_messages(record for record in held if record.id not in left),
            summary=self.summary.message if self.summary else None,
            kept=to_messages(after.incremental),
        )

    def encode(self) -> bytes:
        named = {"summary": self.summary.id} if self.summary else {}
        return encode_object(
            named,
            compressed=encode_list(self.compressed),
            incremental=encode_list(self.incremental),
        )

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(decode_patch(fields.compressed), decode_patch(fields.incremental), None)


class Loaded(Change, frozen=True):
    kind = "loaded"
    command = FromJsonl
    zones: Zones

    @classmethod
    def plan(cls, command: FromJsonl, context: EditContext) -> PlannedEdit:
        state = context.current
        new = load_zones(command.text, command.mode, state.zones, is_new=state.version == 0)
        return PlannedEdit(cls(new.zones), new.count, None)

    def apply(self, zones: Zones) -> Zones:
        return self.zones

    def to_event(self, before: Zones, after: Zones) -> PendingEvent:
        return partial(
            events.Loaded,
            immutable=to_messages(after.immutable),
            compressed=to_messages(after.compressed),
            incremental=to_messages(after.incremental),
        )

    def encode(self) -> bytes:
        return encode_zones(self.zones)

    @classmethod
    def decode(cls, fields: PayloadFields, state: ConversationState) -> Self:
        return cls(fields.zones())


_ALL: Final[tuple[type[Change], ...]] = (
    Appended, Extended, Inserted, Updated, Removed, Popped, Retained, Cleared, Rewound, Restored,
    Compressed, Loaded,
)  # fmt: skip

CHANGES: Final[Mapping[str, type[Change]]] = {each.kind: each for each in _ALL}
"""By the kind of their entries."""

_BY_COMMAND: Final = dict[type, type[Change]](
    (each.command, each) for each in _ALL if each.command is not None
)


def plan_edit(command: EditCommand, context: EditContext) -> PlannedEdit:
    """Plan what `command` asks for. Changes nothing; raises what is wrong with it."""
    return _BY_COMMAND[type(command)].plan(command, context)


def advance(state: ConversationState, change: Change) -> ConversationState:
    """The state after a change. Raises `IndexOutOfRange`."""
    undo = state.undo
    if isinstance(change, Rewound):
        undo = state.zones
    elif isinstance(change, Restored | Loaded):
        undo = None
    return ConversationState(
        change.apply(state.zones),
        state.seq + 1,
        state.version + 1,
        state.compressions + isinstance(change, Compressed),
        undo,
    )


def to_event_seq(entry_seq: int) -> int:
    """The number of a change as events tell it: entry 1 of each log is the conversation itself."""
    return entry_seq - 1


def to_entry_seq(event_seq: int) -> int:
    """The number of the log's entry of a change."""
    return event_seq + 1


def check_index(value: object) -> int:
    """The value, if it can be an index. Raises `InvalidOptions`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOptions(f"an index is an int, not {type(value).__name__}")
    return value


def to_messages(records: Iterable[StoredMessage]) -> tuple[Message, ...]:
    """The messages as values."""
    return tuple(record.message for record in records)


def _record_at(context: EditContext, index: int) -> StoredMessage:
    incremental = context.current.zones.incremental
    if not 0 <= check_index(index) < len(incremental):
        raise IndexOutOfRange(index, len(incremental))
    return incremental[index]


def _missing(before: PersistentVector, after: PersistentVector) -> tuple[StoredMessage, ...]:
    left = {id(record) for record in after}
    return tuple(record for record in before if id(record) not in left)
