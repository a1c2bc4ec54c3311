"""How a conversation branches off: a new one that shares its past by reference."""

from __future__ import annotations

from typing import Protocol

from agent_context.conversation import edits
from agent_context.conversation.log import Moment
from agent_context.conversation.opening import branched
from agent_context.conversation.seat import Seat
from agent_context.conversation.settings import Settings
from agent_context.conversation.state import State
from agent_context.messages import new_id
from agent_context.ref import ContextRef
from agent_context.runtime import Failed, Later, Reply
from agent_context.stores.store import Parent

__all__ = ["forked"]


class Launch(Protocol):
    """Starts a conversation."""

    def __call__(
        self, settings: Settings, state: State, *, seat: Seat | None = None
    ) -> ContextRef: ...


def forked(
    state: State, at: int | None, settings: Settings, seat: Seat | None, launch: Launch
) -> ContextRef | Reply[ContextRef]:
    """A fork of what `state` is now, cut back to `at` messages; kept where its parent is."""
    journal, name = state.journal, new_id()
    zones = state.zones if at is None else state.zones.rewind(edits.index_of(at))
    if journal is None:
        return launch(settings, State(name, Moment(zones)))
    access, origin = journal.access, Parent(state.conversation_id, state.moment.seq)
    fork: Reply[ContextRef] = Reply()

    def start(place: Seat | None) -> ContextRef:
        return launch(settings, branched(access, name, origin, at, zones), seat=place)

    def branch() -> ContextRef:
        return start(None) if seat is None else seat.branch(name, start)

    def then(error: BaseException | None) -> None:
        # The parent's past has to be kept before anything can begin with it.
        fork.set(Later(access.read(branch)) if error is None else Failed(error))

    state.when_kept(then)
    return fork
