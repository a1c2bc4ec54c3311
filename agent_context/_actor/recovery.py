"""Durable conversations: creating, reopening and forking one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Final, Protocol

from msgspec import Struct

from agent_context import events
from agent_context._actor.changes import Compressed, ConversationState, Loaded, check_index
from agent_context._actor.checkpoint import TurnCheckpoint, decode_checkpoint, make_question_key
from agent_context._actor.config import ActorConfig
from agent_context._actor.hidden_messages import HiddenMessages, hidden_between, is_replaced
from agent_context._actor.journal import Journal, LogTail
from agent_context._actor.lifecycle import HostPort
from agent_context._actor.replay import (
    CREATED,
    ForkPoint,
    decode_created,
    encode_created,
    encode_forked,
    replay,
)
from agent_context._actor.snapshot_codec import decode_snapshot
from agent_context._actor.state import STORE_TIMEOUT, ActorState, to_turn_messages, wait_for_store
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context._runtime import Deferred, Failure, Reply, io_loop
from agent_context._validation import check_type
from agent_context.errors import (
    ConversationDeleted,
    Fenced,
    OwnedByAnotherProcess,
    StoreCorrupt,
    StoreUnavailable,
    UsageError,
)
from agent_context.messages import new_id
from agent_context.protocol import Fork
from agent_context.ref import ContextRef
from agent_context.stores.store import Claim, Entry, ForkOrigin, Snapshot, Store
from agent_context.stores.writer import StoreExecutor

__all__ = [
    "OWNERSHIP_LOST",
    "Reopened",
    "close_lost_turn",
    "fork",
    "load_state",
    "open_conversation",
    "open_fork",
    "open_with_timeout",
    "reopen",
]

logger = logging.getLogger(__name__)

OWNERSHIP_LOST: Final = (Fenced, OwnedByAnotherProcess, ConversationDeleted)
"""What says that a conversation is somebody else's now, or nobody's."""


def open_conversation(access: StoreExecutor, conversation_id: str, zones: Zones) -> ActorState:
    """Claim a conversation and restore its state; a new one begins with `zones`.

    Call `close_lost_turn` next, once there is who wants to hear of it. Raises `StoreError`.
    """
    claim = access.store.claim(conversation_id)
    begins = ConversationState(zones)
    return _build_conversation(access, conversation_id, claim, begins, encode_created(zones))


def open_with_timeout(access: StoreExecutor, conversation_id: str, zones: Zones) -> ActorState:
    """The same, with a timeout for a store that hangs."""
    opening = access.read(open_conversation, access, conversation_id, zones)
    try:
        return wait_for_store(opening)
    except StoreUnavailable:
        opening.add_done_callback(_release)
        raise


def _release(opening: Reply[ActorState]) -> None:
    if opening.error() is None and (journal := opening.get().journal) is not None:
        journal.release(opening.get().current)


class Reopened(Struct, frozen=True):
    """The outcome of reloading a conversation whose write failed."""

    state: ActorState | None = None
    error: BaseException | None = None


def reopen(journal: Journal, post: Callable[[object], bool]) -> None:
    """Reload the conversation of a failed journal off its actor's thread; posts a `Reopened`.

    It gives up on a store that hangs, and lets go of what that gives later.
    """
    executor = StoreExecutor.for_store(journal.access.store)
    name = journal.conversation_id
    opening = executor.read(open_conversation, executor, name, Zones())
    claimed = Lock()

    def give_up() -> None:
        if claimed.acquire(blocking=False):
            opening.add_done_callback(_release)
            text = f"the store has not answered in {STORE_TIMEOUT} seconds"
            post(Reopened(error=StoreUnavailable(text)))

    timer = io_loop().call_later(STORE_TIMEOUT, give_up)

    def finish(reply: Reply[ActorState]) -> None:
        if claimed.acquire(blocking=False):
            timer.cancel()
            error = reply.error()
            post(Reopened(error=error) if error else Reopened(reply.get()))

    opening.add_done_callback(finish)


def open_fork(
    access: StoreExecutor,
    conversation_id: str,
    parent: ForkOrigin,
    at: int | None,
    begins: ConversationState,
) -> ActorState:
    """A new conversation that begins so: as `parent` was, cut back to `at` messages."""
    claim = access.store.claim(conversation_id, parent=parent)
    first = encode_forked(parent.id, parent.seq, at)
    return _build_conversation(access, conversation_id, claim, begins, first)


def _build_conversation(
    access: StoreExecutor,
    conversation_id: str,
    claim: Claim,
    begins: ConversationState,
    first: tuple[str, bytes],
) -> ActorState:
    tail = LogTail()
    journal = Journal(access, conversation_id, claim.epoch, claim.head, tail)
    if claim.head == 0:
        stored = begins
        journal.add(*first)
    else:
        # Up to what was claimed: who claimed it since may have written on, and will fence this one.
        stored = load_state(access.store, conversation_id, claim.head, tail)
        _check_head(conversation_id, stored, claim)
    journal.lost_turn = None if claim.draft is None else decode_checkpoint(claim.draft)
    state = ActorState(conversation_id, stored, journal)
    if stored.compressions:
        load = partial(read_hidden, access.store, conversation_id, max(claim.head, 1))
        state.hidden = HiddenMessages(load)
    return state


def _check_head(conversation_id: str, stored: ConversationState, claim: Claim) -> None:
    if stored.seq != claim.head:
        raise StoreCorrupt(
            f"conversation {conversation_id}: its log ends at entry {stored.seq}, "
            f"and {claim.head} were acknowledged"
        )


def _find_free_question_key(journal: Journal, draft: TurnCheckpoint) -> str | None:
    """The key under which a question is found that nothing has answered, to be asked again."""
    if draft.key is None or draft.answer is not None or not draft.pending_messages:
        return None
    key = make_question_key(draft.key)
    known = journal.access.store.find_by_key(journal.conversation_id, key)
    return key if known is None else None


def close_lost_turn(state: ActorState) -> None:
    """End a turn that was running when its process ended, by its abort policy.

    What that changes waits for the state's next commit.
    """
    journal = state.journal
    if journal is None or journal.lost_turn is None:
        return
    draft, journal.lost_turn = journal.lost_turn, None
    kept = state.with_unique_ids(to_turn_messages(draft.answer_and_results()))
    state.store_turn(kept, after=draft.after, key=_find_free_question_key(journal, draft))
    journal.set_running_turn(None)
    lost = partial(
        events.TurnLost, turn_id=draft.turn_id, kept=tuple(said.message for said in kept)
    )
    state.announce(lambda: lost)


def load_state(
    store: Store, conversation_id: str, upto: int | None = None, tail: LogTail | None = None
) -> ConversationState:
    """What the conversation is, or was after an entry. Raises `StoreError`.

    What had to be read is added to `tail`.
    """
    tail = tail or LogTail()
    stored, entries = _load_stored(store, conversation_id, upto, tail)
    later: list[tuple[ForkPoint, Sequence[Entry]]] = []
    while isinstance(origin := _origin(entries), ForkPoint):
        later.append((origin, entries))
        stored, entries = _load_stored(store, origin.parent, origin.seq, tail)
    if origin is not None:
        stored, entries = ConversationState(origin, entries[0].seq), entries[1:]
    stored = replay(stored, entries)
    for branch, entries in reversed(later):
        zones = stored.zones if branch.at is None else stored.zones.truncate(branch.at)
        begins = ConversationState(zones, entries[0].seq, compressions=stored.compressions)
        stored = replay(begins, entries[1:])
    return stored


def read_hidden(store: Store, conversation_id: str, upto: int) -> list[StoredMessage]:
    """What compressions took away up to an entry, in its parents too. Raises `StoreError`.

    What a vacuum removed is gone.
    """
    entries: Sequence[Entry] = _entries(store, conversation_id, upto)
    hidden: list[StoredMessage] = []
    match _origin(entries):
        case ForkPoint(parent, seq):
            hidden = read_hidden(store, parent, seq)
            stored = load_state(store, conversation_id, entries[0].seq)
        case Zones() as zones:
            stored = ConversationState(zones, entries[0].seq)
        case None:
            stored, later = _load_stored(store, conversation_id, upto, LogTail())
            entries = (*entries[:1], *later)
    for entry in entries[1:]:
        after = replay(stored, (entry,))
        if entry.kind == Compressed.kind:
            hidden += hidden_between(stored.zones, after.zones)
        elif entry.kind == Loaded.kind and is_replaced(stored.zones, after.zones):
            hidden.clear()
        stored = after
    return hidden


def _origin(entries: Sequence[Entry]) -> Zones | ForkPoint | None:
    """What the first entry says the conversation began with; None if these are later entries."""
    return decode_created(entries[0]) if entries and entries[0].kind == CREATED else None


def _load_stored(
    store: Store, conversation_id: str, upto: int | None, tail: LogTail
) -> tuple[ConversationState, Sequence[Entry]]:
    """A snapshot's state, and the entries that follow it."""
    log = store.load(conversation_id, upto=upto)
    stored, entries = _read_snapshot(conversation_id, log.snapshot), log.entries
    if stored is None:
        stored = ConversationState(Zones(), 0)
        if log.snapshot is not None:
            entries = _entries(store, conversation_id, upto)
    elif log.snapshot is not None:
        tail.snapshot_size += len(log.snapshot.payload)
    tail.add(entries)
    return stored, entries


def _read_snapshot(conversation_id: str, snapshot: Snapshot | None) -> ConversationState | None:
    """The state that it holds; None if there is none that can be read."""
    if snapshot is None:
        return None
    try:
        return decode_snapshot(snapshot)
    except StoreCorrupt as error:
        # It only saves time: the log says the same.
        logger.warning("conversation %s is read from its log: %s", conversation_id, error)
        return None


def _entries(store: Store, conversation_id: str, upto: int | None) -> list[Entry]:
    """The whole log, where no snapshot can be read."""
    entries: list[Entry] = []
    after = 0
    while page := store.entries(conversation_id, after=after, upto=upto):
        entries += page
        after = page[-1].seq
    return entries


class Launch(Protocol):
    """Starts a conversation."""

    def __call__(
        self, config: ActorConfig, state: ActorState, *, host: HostPort | None = None
    ) -> ContextRef: ...


def fork(
    state: ActorState, asked: Fork, config: ActorConfig, host: HostPort | None, launch: Launch
) -> ContextRef | Reply[ContextRef]:
    """A fork of what `state` is now, cut back to `at` messages; kept where its parent is."""
    journal, at = state.journal, asked.at
    name = new_id() if asked.id is None else check_type("id", asked.id, str)
    zones = state.zones if at is None else state.zones.truncate(check_index(at))
    if journal is None:
        forked = ActorState(name, ConversationState(zones))
        forked.hidden = None if state.hidden is None else state.hidden.copy()
        return launch(config, forked)
    access, origin = journal.access, ForkOrigin(state.conversation_id, state.current.seq)
    fork: Reply[ContextRef] = Reply()

    def start(place: HostPort | None) -> ContextRef:
        begins = ConversationState(zones, compressions=state.current.compressions)
        return launch(config, open_fork(access, name, origin, at, begins), host=place)

    def branch() -> ContextRef:
        if asked.id is not None and access.store.info(name) is not None:
            raise UsageError(f"id: there is a conversation {name!r} already")
        return start(None) if host is None else host.register_fork(name, start)

    def then(error: BaseException | None) -> None:
        # The parent's past has to be kept before anything can begin with it.
        fork.set(Deferred(access.read(branch)) if error is None else Failure(error))

    state.on_committed(then)
    return fork
