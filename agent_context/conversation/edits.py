"""What each edit does to a conversation, and what it answers."""

from __future__ import annotations

from agent_context.compression.run import Compaction
from agent_context.conversation.changes import (
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
    spliced,
    views,
)
from agent_context.conversation.state import State
from agent_context.errors import InvalidOptions, UsageMistake
from agent_context.jsonl import Import, imported
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
from agent_context.records import Record, with_id
from agent_context.runtime import inside
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["Edit", "append", "apply", "index_of", "seen", "store", "swap"]

Edit = (
    Append | Extend | Insert | Update | Remove | Pop | Retain | Clear | Rewind | Restore | FromJsonl
)


def apply(state: State, edit: Edit) -> object:
    """Carry out `edit`, all of it or none, and return its reply."""
    match edit:
        case Append(message, key):
            return append(state, state.at_rest(message), key=key)
        case Extend(messages, key):
            return _extend(state, state.at_rest_all(messages), key)
        case Insert(index, message):
            return _insert(state, index_of(index), state.at_rest(message))
        case Update(index, message):
            return _update(state, index_of(index), state.at_rest(message))
        case Remove(index):
            return _remove(state, index_of(index))
        case Pop():
            return _pop(state)
        case Retain(keep):
            return _retain(state, keep)
        case Clear():
            return _clear(state)
        case Rewind(to):
            return _rewind(state, index_of(to))
        case Restore():
            return _restore(state)
        case FromJsonl(text, mode):
            return _load(state, imported(text, mode, state.zones, is_new=state.moment.version == 0))


def append(state: State, record: Record, *, key: str | None = None) -> MessageId:
    """Add one record at the end."""
    state.change(Appended(record), key=key)
    return record.id


def store(
    state: State,
    records: tuple[Record, ...],
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
    index = _behind(incremental, after)
    at_end = index == len(incremental)
    for offset, record in enumerate(records):
        last = record is records[-1]
        said = answer if last else None
        change = Appended(record, said) if at_end else Inserted(index + offset, record, said)
        state.change(change, key=key if last else None)


def seen(zones: Zones, after: MessageId | None) -> Zones:
    """The zones without what was added behind `after`."""
    return zones.rewind(_behind(zones.incremental, after))


def _behind(incremental: Vector, after: MessageId | None) -> int:
    if after is None:
        return 0
    index = len(incremental)
    for record in reversed(incremental):
        if record.id == after:
            return index
        index -= 1
    return len(incremental)


def _extend(state: State, records: tuple[Record, ...], key: str | None) -> tuple[MessageId, ...]:
    if records:
        state.change(Extended(records), key=key)
    return tuple(record.id for record in records)


def _insert(state: State, index: int, record: Record) -> MessageId:
    state.change(Inserted(index, record))
    return record.id


def _update(state: State, index: int, record: Record) -> Message:
    state.zones.update(index, record)  # whether it can be
    old = state.zones.incremental[index]
    state.change(Updated(index, with_id(record, old.id)))
    return old.message


def _remove(state: State, index: int) -> Message:
    state.zones.remove(index)  # whether it can be
    old = state.zones.incremental[index]
    state.change(Removed(index), gone=(old,))
    return old.message


def _pop(state: State) -> Message | None:
    length = len(state.zones.incremental)
    if not length:
        return None
    old = state.zones.incremental[length - 1]
    state.change(Popped(), gone=(old,))
    return old.message


def _retain(state: State, keep: object) -> tuple[Message, ...]:
    before = state.zones.incremental
    if isinstance(keep, Role):
        zones = state.zones.retain(lambda record: record.role is keep)
    elif callable(keep):
        with inside(state.conversation_id):
            zones = state.zones.retain(lambda record: bool(keep(record.message)))
    else:
        raise InvalidOptions(f"Retain: a role or a predicate, not {type(keep).__name__}")
    left = {id(record) for record in zones.incremental}
    gone = tuple(record for record in before if id(record) not in left)
    if gone:
        state.change(Retained(spliced(before, zones.incremental)), gone=gone)
    return views(gone)


def _clear(state: State) -> tuple[Message, ...]:
    gone = tuple(state.zones.incremental)
    if gone:
        state.change(Cleared(), gone=gone)
    return views(gone)


def _rewind(state: State, to: int) -> tuple[Message, ...]:
    state.zones.rewind(to)  # whether it can be
    gone = state.zones.incremental.drop(to)
    if gone:
        state.change(Rewound(to), gone=gone)
    return views(gone)


def _restore(state: State) -> tuple[Message, ...]:
    before, zones = state.zones, state.moment.undo
    if zones is None:
        raise UsageMistake("there is no rewind to take back")
    state.change(Restored(zones))
    state.forget_ids()
    were = {id(record) for record in before}
    return views(record for record in zones if id(record) not in were)


def _load(state: State, new: Import) -> int:
    state.change(Loaded(new.zones))
    state.forget_ids()
    return new.count


def swap(state: State, compaction: Compaction) -> Zones | None:
    """Put a compression's outcome in place; None if what it was made from has changed."""
    before = state.zones
    zones = compaction.onto(before)
    if zones is None:
        return None
    left = {record.id for record in (*zones.compressed, *zones.incremental)}
    gone = tuple(r for r in (*before.compressed, *before.incremental) if r.id not in left)
    compressed = spliced(before.compressed, zones.compressed)
    incremental = spliced(before.incremental, zones.incremental)
    state.change(Compressed(compressed, incremental, compaction.summary), gone=gone)
    return state.zones


def index_of(value: object) -> int:
    """The value, if it can be an index. Raises `InvalidOptions`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOptions(f"an index is an int, not {type(value).__name__}")
    return value
