"""What each edit does to a conversation, and what it answers."""

from __future__ import annotations

from agent_context._actor.changes import (
    Appended,
    Cleared,
    Compressed,
    Extended,
    Inserted,
    Loaded,
    Popped,
    Removed,
    Restored,
    Retained,
    Rewound,
    Updated,
    diff_zone,
    to_messages,
)
from agent_context._actor.state import ActorState
from agent_context._context.jsonl import LoadedZones, load_zones
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, with_id
from agent_context._context.zones import Zones
from agent_context._runtime import reentrancy_scope
from agent_context.compression.executor import CompressionResult
from agent_context.errors import InvalidOptions, UsageError
from agent_context.messages import Message, MessageId, Role
from agent_context.protocol import (
    Append,
    Clear,
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
    "Edit",
    "append",
    "apply",
    "apply_compression",
    "check_index",
    "store_turn_messages",
    "zones_before",
]

Edit = (
    Append | Extend | Insert | Update | Remove | Pop | Retain | Clear | Rewind | Restore | FromJsonl
)


def apply(state: ActorState, edit: Edit) -> object:
    """Carry out `edit`, all of it or none, and return its reply."""
    match edit:
        case Append(message, key):
            return append(state, state.to_record(message), key=key)
        case Extend(messages, key):
            return _extend(state, state.to_records(messages), key)
        case Insert(index, message):
            return _insert(state, check_index(index), state.to_record(message))
        case Update(index, message):
            return _update(state, check_index(index), state.to_record(message))
        case Remove(index):
            return _remove(state, check_index(index))
        case Pop():
            return _pop(state)
        case Retain(keep):
            return _retain(state, keep)
        case Clear():
            return _clear(state)
        case Rewind(to):
            return _rewind(state, check_index(to))
        case Restore():
            return _restore(state)
        case FromJsonl(text, mode):
            return _load(
                state, load_zones(text, mode, state.zones, is_new=state.current.version == 0)
            )


def append(state: ActorState, record: StoredMessage, *, key: str | None = None) -> MessageId:
    """Add one record at the end."""
    state.change(Appended(record), key=key)
    return record.id


def store_turn_messages(
    state: ActorState,
    records: tuple[StoredMessage, ...],
    *,
    after: MessageId | None,
    answer: bytes | None = None,
    key: str | None = None,
) -> None:
    """Add what a turn said, right behind `after`, the last message that its request held.

    It stands at the end if that one is gone, and in front of all if the request held none.

    What was appended while the turn ran stays behind it: the model has not seen it yet. `answer`
    is what the vendor said beside the last message, `key` the idempotency key of the turn.
    """
    incremental = state.zones.incremental
    index = _index_after(incremental, after)
    at_end = index == len(incremental)
    for offset, record in enumerate(records):
        last = record is records[-1]
        said = answer if last else None
        change = Appended(record, said) if at_end else Inserted(index + offset, record, said)
        state.change(change, key=key if last else None)


def zones_before(zones: Zones, after: MessageId | None) -> Zones:
    """The zones without what was added behind `after`."""
    return zones.truncate(_index_after(zones.incremental, after))


def _index_after(incremental: PersistentVector, after: MessageId | None) -> int:
    if after is None:
        return 0
    index = len(incremental)
    for record in reversed(incremental):
        if record.id == after:
            return index
        index -= 1
    return len(incremental)


def _extend(
    state: ActorState, records: tuple[StoredMessage, ...], key: str | None
) -> tuple[MessageId, ...]:
    if records:
        state.change(Extended(records), key=key)
    return tuple(record.id for record in records)


def _insert(state: ActorState, index: int, record: StoredMessage) -> MessageId:
    state.change(Inserted(index, record))
    return record.id


def _update(state: ActorState, index: int, record: StoredMessage) -> Message:
    state.zones.update(index, record)  # whether it can be
    old = state.zones.incremental[index]
    state.change(Updated(index, with_id(record, old.id)))
    return old.message


def _remove(state: ActorState, index: int) -> Message:
    state.zones.remove(index)  # whether it can be
    old = state.zones.incremental[index]
    state.change(Removed(index), gone=(old,))
    return old.message


def _pop(state: ActorState) -> Message | None:
    length = len(state.zones.incremental)
    if not length:
        return None
    old = state.zones.incremental[length - 1]
    state.change(Popped(), gone=(old,))
    return old.message


def _retain(state: ActorState, keep: object) -> tuple[Message, ...]:
    before = state.zones.incremental
    if isinstance(keep, Role):
        zones = state.zones.filter(lambda record: record.role is keep)
    elif callable(keep):
        with reentrancy_scope(state.conversation_id):
            zones = state.zones.filter(lambda record: bool(keep(record.message)))
    else:
        raise InvalidOptions(f"Retain: a role or a predicate, not {type(keep).__name__}")
    left = {id(record) for record in zones.incremental}
    gone = tuple(record for record in before if id(record) not in left)
    if gone:
        state.change(Retained(diff_zone(before, zones.incremental)), gone=gone)
    return to_messages(gone)


def _clear(state: ActorState) -> tuple[Message, ...]:
    gone = tuple(state.zones.incremental)
    if gone:
        state.change(Cleared(), gone=gone)
    return to_messages(gone)


def _rewind(state: ActorState, to: int) -> tuple[Message, ...]:
    state.zones.truncate(to)  # whether it can be
    gone = state.zones.incremental.tail(to)
    if gone:
        state.change(Rewound(to), gone=gone)
    return to_messages(gone)


def _restore(state: ActorState) -> tuple[Message, ...]:
    before, zones = state.zones, state.current.undo
    if zones is None:
        raise UsageError("there is no rewind to take back")
    state.change(Restored(zones))
    state.forget_ids()
    were = {id(record) for record in before}
    return to_messages(record for record in zones if id(record) not in were)


def _load(state: ActorState, new: LoadedZones) -> int:
    state.change(Loaded(new.zones))
    state.forget_ids()
    return new.count


def apply_compression(state: ActorState, compaction: CompressionResult) -> Zones | None:
    """Put a compression's outcome in place; None if what it was made from has changed."""
    before = state.zones
    zones = compaction.apply_to(before)
    if zones is None:
        return None
    left = {record.id for record in (*zones.compressed, *zones.incremental)}
    gone = tuple(r for r in (*before.compressed, *before.incremental) if r.id not in left)
    compressed = diff_zone(before.compressed, zones.compressed)
    incremental = diff_zone(before.incremental, zones.incremental)
    state.change(Compressed(compressed, incremental, compaction.summary), gone=gone)
    return state.zones


def check_index(value: object) -> int:
    """The value, if it can be an index. Raises `InvalidOptions`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOptions(f"an index is an int, not {type(value).__name__}")
    return value
