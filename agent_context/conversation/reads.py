"""What can be asked of a conversation without changing it."""

from __future__ import annotations

from functools import partial
from typing import cast

from agent_context.checks import checked
from agent_context.conversation import edits
from agent_context.conversation.changes import views
from agent_context.conversation.past import page, recalled
from agent_context.conversation.state import State
from agent_context.errors import InvalidOptions, UsageMistake
from agent_context.jsonl import exported
from agent_context.messages import Role
from agent_context.protocol import (
    Compressed,
    FindByRole,
    Get,
    History,
    HistoryPage,
    Immutable,
    Incremental,
    IsEmpty,
    Len,
    Messages,
    Recall,
    Remark,
    ToJsonl,
)
from agent_context.runtime import Later, Reply
from agent_context.zones import Zones

__all__ = ["Read", "look_back", "read"]

Read = Len | IsEmpty | Get | FindByRole | ToJsonl | Messages | Immutable | Compressed | Incremental


def read(zones: Zones, message: Read) -> object:
    """The reply, from what the zones hold."""
    match message:
        case Len():
            return len(zones)
        case IsEmpty():
            return not len(zones)
        case Get(index):
            return zones.get(edits.index_of(index)).message
        case FindByRole(role):
            wanted = _role(role)
            found = ((i, r) for i, r in enumerate(zones) if r.role is wanted)
            return tuple((index, record.message) for index, record in found)
        case ToJsonl(which):
            return exported(zones, which)
        case Messages():
            return views(zones)
        case Immutable():
            return views(zones.immutable)
        case Compressed():
            return views(zones.compressed)
        case Incremental():
            return views(zones.incremental)


def look_back(state: State, message: History | Recall) -> Reply[HistoryPage | tuple[Remark, ...]]:
    """The reply, from the store, once everything so far is kept there."""
    if state.journal is None:
        raise UsageMistake(
            "the past is kept in a store, and this conversation has none: start(…, store=…)"
        )
    limit = edits.index_of(message.limit)
    if limit < 1:
        raise InvalidOptions(f"limit: a number from 1 on, not {limit!r}")
    text = message.after if isinstance(message, History) else message.text
    checked("after" if isinstance(message, History) else "text", text, str)
    access, name = state.journal.access, state.conversation_id
    found: Reply[HistoryPage | tuple[Remark, ...]] = Reply()
    look = (
        partial(page, access.store, name, text, limit)
        if isinstance(message, History)
        else partial(recalled, access.store, name, text, limit)
    )
    state.when_kept(lambda _: found.set(Later(access.read(look))))
    return found


def _role(value: object) -> Role:
    try:
        return Role(cast("str", value))
    except ValueError as error:
        raise InvalidOptions(f"role: one of {', '.join(Role)}, not {value!r}") from error
