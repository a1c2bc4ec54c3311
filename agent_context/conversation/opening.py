"""Durable conversations: how one is begun, found again, and branched off.

Everything here waits for the store: it is called outside the actor, or by one that has lost what
it knew.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from agent_context import events
from agent_context.conversation import edits
from agent_context.conversation.changes import views
from agent_context.conversation.drafts import draft_of
from agent_context.conversation.journal import Journal
from agent_context.conversation.log import (
    BEGUN,
    Branch,
    Moment,
    after,
    begun,
    begun_in,
    begun_with,
)
from agent_context.conversation.snapshots import moment_of
from agent_context.conversation.state import State
from agent_context.errors import StoreCorrupt
from agent_context.stores.access import Access
from agent_context.stores.store import Claim, Entry, Parent, Store
from agent_context.zones import Zones

__all__ = ["branched", "close_turn", "moment_at", "opened"]


def opened(access: Access, conversation_id: str, zones: Zones) -> State:
    """Claim a conversation and make it what it was; a new one begins with `zones`.

    Call `close_turn` next, once there is who wants to hear of it. Raises `StoreError`.
    """
    claim = access.store.claim(conversation_id)
    return _owned(access, conversation_id, claim, zones, begun(zones))


def branched(
    access: Access, conversation_id: str, parent: Parent, at: int | None, zones: Zones
) -> State:
    """A new conversation that begins with `zones`: what `parent` was, cut back to `at` messages."""
    claim = access.store.claim(conversation_id, parent=parent)
    first = begun_with(parent.id, parent.seq, at)
    return _owned(access, conversation_id, claim, zones, first)


def _owned(
    access: Access, conversation_id: str, claim: Claim, zones: Zones, first: tuple[str, bytes]
) -> State:
    journal = Journal(access, conversation_id, claim.epoch, claim.head)
    if claim.head == 0:
        moment = Moment(zones, 1)
        journal.add(*first)
    else:
        moment = moment_at(access.store, conversation_id)
        _check_head(conversation_id, moment, claim)
    journal.found = None if claim.draft is None else draft_of(claim.draft)
    return State(conversation_id, moment, journal)


def _check_head(conversation_id: str, moment: Moment, claim: Claim) -> None:
    if moment.seq != claim.head:
        raise StoreCorrupt(
            f"conversation {conversation_id}: its log ends at entry {moment.seq}, "
            f"and {claim.head} were acknowledged"
        )


def close_turn(state: State) -> None:
    """End a turn that was running when its process ended, by its abort policy.

    What that changes waits for the state's next commit.
    """
    journal = state.journal
    if journal is None or journal.found is None:
        return
    draft, journal.found = journal.found, None
    kept = state.at_rest_all(draft.left())
    incremental = state.zones.incremental
    after = next((r for r in reversed(incremental) if r.id == draft.after), None)
    edits.store(state, kept, after=after)
    journal.running(None)
    lost = partial(events.TurnLost, turn_id=draft.turn_id, kept=views(kept))
    state.announce(lambda: lost)


def moment_at(store: Store, conversation_id: str, upto: int | None = None) -> Moment:
    """What the conversation is, or was after an entry. Raises `StoreError`."""
    log = store.load(conversation_id, upto=upto)
    moment = None if log.snapshot is None else moment_of(log.snapshot)
    if moment is None and log.snapshot is not None:
        return _after(store, Moment(Zones()), _entries(store, conversation_id, upto))
    return _after(store, moment or Moment(Zones()), log.entries)


def _entries(store: Store, conversation_id: str, upto: int | None) -> list[Entry]:
    """The whole log, for want of a snapshot that can be read."""
    entries: list[Entry] = []
    after = 0
    while page := store.entries(conversation_id, after=after, upto=upto):
        entries += page
        after = page[-1].seq
    return entries


def _after(store: Store, moment: Moment, entries: Sequence[Entry]) -> Moment:
    if entries and entries[0].kind == BEGUN:
        moment, entries = _beginning(store, entries[0]), entries[1:]
    return after(moment, entries)


def _beginning(store: Store, entry: Entry) -> Moment:
    origin = begun_in(entry)
    if isinstance(origin, Branch):
        zones = moment_at(store, origin.parent, origin.seq).zones
        origin = zones if origin.at is None else zones.rewind(origin.at)
    return Moment(origin, entry.seq)
