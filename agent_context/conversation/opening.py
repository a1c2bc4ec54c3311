"""Durable conversations: how one is begun, found again, and branched off.

Everything here waits for the store: it is called outside the actor, or by one that has lost what
it knew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from agent_context import events
from agent_context.conversation import edits
from agent_context.conversation.changes import views
from agent_context.conversation.drafts import Draft, draft_of, question_key
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
from agent_context.conversation.state import State, in_time
from agent_context.errors import (
    ConversationDeleted,
    Fenced,
    OwnedElsewhere,
    StoreCorrupt,
    StoreUnavailable,
)
from agent_context.runtime import Reply
from agent_context.stores.access import Access
from agent_context.stores.store import Claim, Entry, Parent, Store
from agent_context.zones import Zones

__all__ = ["ELSEWHERE", "branched", "close_turn", "moment_at", "opened", "opened_in_time"]

logger = logging.getLogger(__name__)

ELSEWHERE: Final = (Fenced, OwnedElsewhere, ConversationDeleted)
"""What says that a conversation is somebody else's now, or nobody's."""


def opened(access: Access, conversation_id: str, zones: Zones) -> State:
    """Claim a conversation and make it what it was; a new one begins with `zones`.

    Call `close_turn` next, once there is who wants to hear of it. Raises `StoreError`.
    """
    claim = access.store.claim(conversation_id)
    return _owned(access, conversation_id, claim, zones, begun(zones))


def opened_in_time(access: Access, conversation_id: str, zones: Zones) -> State:
    """The same, which gives up on a store that hangs."""
    opening = access.read(opened, access, conversation_id, zones)
    try:
        return in_time(opening)
    except StoreUnavailable:
        opening.add_done_callback(_let_go)
        raise


def _let_go(opening: Reply[State]) -> None:
    if opening.error() is None and (journal := opening.get().journal) is not None:
        journal.release(opening.get().moment)


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
        # Up to what was claimed: who claimed it since may have written on, and will fence this one.
        moment = moment_at(access.store, conversation_id, claim.head)
        _check_head(conversation_id, moment, claim)
    journal.found = None if claim.draft is None else draft_of(claim.draft)
    return State(conversation_id, moment, journal)


def _check_head(conversation_id: str, moment: Moment, claim: Claim) -> None:
    if moment.seq != claim.head:
        raise StoreCorrupt(
            f"conversation {conversation_id}: its log ends at entry {moment.seq}, "
            f"and {claim.head} were acknowledged"
        )


def _question(journal: Journal, draft: Draft) -> str | None:
    """The key under which a question is found that nothing has answered, to be asked again."""
    if draft.key is None or draft.answer is not None or not draft.said:
        return None
    key = question_key(draft.key)
    known = journal.access.store.find(journal.conversation_id, key)
    return key if known is None else None


def close_turn(state: State) -> None:
    """End a turn that was running when its process ended, by its abort policy.

    What that changes waits for the state's next commit.
    """
    journal = state.journal
    if journal is None or journal.found is None:
        return
    draft, journal.found = journal.found, None
    kept = state.at_rest_all(draft.left())
    edits.store(state, kept, after=draft.after, key=_question(journal, draft))
    journal.running(None)
    lost = partial(events.TurnLost, turn_id=draft.turn_id, kept=views(kept))
    state.announce(lambda: lost)


def moment_at(store: Store, conversation_id: str, upto: int | None = None) -> Moment:
    """What the conversation is, or was after an entry. Raises `StoreError`."""
    moment, entries = _kept(store, conversation_id, upto)
    later: list[tuple[Branch, Sequence[Entry]]] = []
    while isinstance(origin := _origin(entries), Branch):
        later.append((origin, entries))
        moment, entries = _kept(store, origin.parent, origin.seq)
    if origin is not None:
        moment, entries = Moment(origin, entries[0].seq), entries[1:]
    moment = after(moment, entries)
    for branch, entries in reversed(later):
        zones = moment.zones if branch.at is None else moment.zones.rewind(branch.at)
        moment = after(Moment(zones, entries[0].seq), entries[1:])
    return moment


def _origin(entries: Sequence[Entry]) -> Zones | Branch | None:
    """What these entries begin with; None if they are not the first."""
    return begun_in(entries[0]) if entries and entries[0].kind == BEGUN else None


def _kept(store: Store, conversation_id: str, upto: int | None) -> tuple[Moment, Sequence[Entry]]:
    """A moment, and the entries that follow it."""
    log = store.load(conversation_id, upto=upto)
    if log.snapshot is None:
        return Moment(Zones()), log.entries
    try:
        moment = moment_of(log.snapshot)
    except StoreCorrupt as error:
        # It only saves time: the log says the same.
        logger.warning("conversation %s is read from its log: %s", conversation_id, error)
        moment = None
    if moment is not None:
        return moment, log.entries
    return Moment(Zones()), _entries(store, conversation_id, upto)


def _entries(store: Store, conversation_id: str, upto: int | None) -> list[Entry]:
    """The whole log, for want of a snapshot that can be read."""
    entries: list[Entry] = []
    after = 0
    while page := store.entries(conversation_id, after=after, upto=upto):
        entries += page
        after = page[-1].seq
    return entries
