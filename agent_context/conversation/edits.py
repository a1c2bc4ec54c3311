"""What each edit does to a conversation, and what it answers."""

from __future__ import annotations

from functools import partial

from agent_context import events
from agent_context.compression.run import Compaction
from agent_context.conversation.state import State, views
from agent_context.errors import InvalidOptions
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
    Retain,
    Rewind,
    Update,
)
from agent_context.records import Record, with_id
from agent_context.runtime import inside
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["Edit", "append", "apply", "index_of", "seen", "store", "swap"]

Edit = Append | Extend | Insert | Update | Remove | Pop | Retain | Clear | Rewind | FromJsonl


def apply(state: State, edit: Edit) -> object:
    """Carry out `edit`, all of it or none, and return its reply."""
    match edit:
        case Append(message):
            return append(state, state.at_rest(message))
        case Extend(messages):
            return _extend(state, state.at_rest_all(messages))
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
        case FromJsonl(text, mode):
            return _load(state, imported(text, mode, state.zones, is_new=state.version == 0))


def append(state: State, record: Record) -> MessageId:
    """Add one record at the end."""
    index = len(state.zones.incremental)
    state.change(
        state.zones.append(record),
        lambda: partial(events.Appended, index=index, message=record.message),
    )
    return record.id


def store(state: State, records: tuple[Record, ...], *, after: Record | None) -> None:
    """Add what a turn said, right behind `after`, the last message that its request held.

    What was appended while the turn ran stays behind it: the model has not seen it yet.
    """
    incremental = state.zones.incremental
    index = _behind(incremental, after)
    if index == len(incremental):
        for record in records:
            append(state, record)
        return
    for offset, record in enumerate(records):
        _insert(state, index + offset, record)


def seen(zones: Zones, after: Record | None) -> Zones:
    """The zones without what was added behind `after`."""
    return zones.rewind(_behind(zones.incremental, after))


def _behind(incremental: Vector, after: Record | None) -> int:
    if after is None:
        return 0
    index = len(incremental)
    for record in reversed(incremental):
        if record.id == after.id:
            return index
        index -= 1
    return len(incremental)


def _extend(state: State, records: tuple[Record, ...]) -> tuple[MessageId, ...]:
    index = len(state.zones.incremental)
    if records:
        state.change(
            state.zones.extend(records),
            lambda: partial(events.Extended, index=index, messages=views(records)),
        )
    return tuple(record.id for record in records)


def _insert(state: State, index: int, record: Record) -> MessageId:
    state.change(
        state.zones.insert(index, (record,)),
        lambda: partial(events.Inserted, index=index, message=record.message),
    )
    return record.id


def _update(state: State, index: int, record: Record) -> Message:
    zones = state.zones.update(index, record)
    old = state.zones.incremental[index]
    new = with_id(record, old.id)
    state.change(
        zones.update(index, new),
        lambda: partial(events.Updated, index=index, old=old.message, new=new.message),
    )
    return old.message


def _remove(state: State, index: int) -> Message:
    zones = state.zones.remove(index)
    old = state.zones.incremental[index]
    state.change(
        zones,
        lambda: partial(events.Removed, index=index, message=old.message),
        gone=(old,),
    )
    return old.message


def _pop(state: State) -> Message | None:
    length = len(state.zones.incremental)
    if not length:
        return None
    old = state.zones.incremental[length - 1]
    state.change(
        state.zones.rewind(length - 1),
        lambda: partial(events.Popped, message=old.message),
        gone=(old,),
    )
    return old.message


def _retain(state: State, keep: object) -> tuple[Message, ...]:
    if isinstance(keep, Role):
        zones = state.zones.retain(lambda record: record.role is keep)
    elif callable(keep):
        with inside(state.conversation_id):
            zones = state.zones.retain(lambda record: bool(keep(record.message)))
    else:
        raise InvalidOptions(f"Retain: a role or a predicate, not {type(keep).__name__}")
    left = {id(record) for record in zones.incremental}
    gone = tuple(record for record in state.zones.incremental if id(record) not in left)
    if gone:
        state.change(zones, lambda: partial(events.Retained, removed=views(gone)), gone=gone)
    return views(gone)


def _clear(state: State) -> tuple[Message, ...]:
    gone = tuple(state.zones.incremental)
    if gone:
        state.change(
            state.zones.rewind(0), lambda: partial(events.Cleared, removed=views(gone)), gone=gone
        )
    return views(gone)


def _rewind(state: State, to: int) -> tuple[Message, ...]:
    zones = state.zones.rewind(to)
    gone = state.zones.incremental.drop(to)
    if gone:
        state.change(zones, lambda: partial(events.Rewound, to=to, removed=views(gone)), gone=gone)
    return views(gone)


def _load(state: State, new: Import) -> int:
    zones = new.zones
    state.change(
        zones,
        lambda: partial(
            events.Loaded,
            immutable=views(zones.immutable),
            compressed=views(zones.compressed),
            incremental=views(zones.incremental),
        ),
    )
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
    summary = compaction.summary
    state.compressions += 1
    state.change(
        zones,
        lambda: partial(
            events.Compressed,
            removed=views(gone),
            summary=summary.message if summary else None,
            kept=views(zones.incremental),
        ),
        gone=gone,
    )
    return zones


def index_of(value: object) -> int:
    """The value, if it can be an index. Raises `InvalidOptions`."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidOptions(f"an index is an int, not {type(value).__name__}")
    return value
