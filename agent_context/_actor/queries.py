"""The queries that a conversation answers from its zones, its counts, and its store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import cast

from msgspec.structs import replace

from agent_context._actor.changes import check_index, to_event_seq, to_messages
from agent_context._actor.model_client import BoundModel, scratch_records
from agent_context._actor.prompt_cache_tracker import PromptCacheTracker, compare_prefix
from agent_context._actor.replay import messages_in_entry
from agent_context._actor.state import ActorState
from agent_context._context.jsonl import dump_zones
from agent_context._context.stored_message import from_line
from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.zones import Zones
from agent_context._runtime import Deferred, Reply, io_loop
from agent_context._validation import check_type
from agent_context.errors import InvalidOptions, UsageError
from agent_context.messages import Role
from agent_context.prompt_cache import CacheUsageReport
from agent_context.protocol import (
    Compressed,
    FindByRole,
    Get,
    History,
    HistoryEntry,
    HistoryPage,
    Immutable,
    Incremental,
    IsEmpty,
    Len,
    Messages,
    SearchHistory,
    ToJsonl,
)
from agent_context.stores.message_search import MessageMatch, search_messages
from agent_context.stores.store import Entry, Store

__all__ = [
    "ZoneQuery",
    "answer_query",
    "build_cache_report",
    "estimate_tokens",
    "history_page",
    "query_history",
    "search_history",
]

ZoneQuery = (
    Len | IsEmpty | Get | FindByRole | ToJsonl | Messages | Immutable | Compressed | Incremental
)


def answer_query(zones: Zones, message: ZoneQuery) -> object:
    """Answer from the zones."""
    match message:
        case Len():
            return len(zones)
        case IsEmpty():
            return not len(zones)
        case Get(index):
            return zones.get(check_index(index)).message
        case FindByRole(role):
            wanted = _role(role)
            found = ((i, r) for i, r in enumerate(zones) if r.role is wanted)
            return tuple((index, record.message) for index, record in found)
        case ToJsonl(which):
            return dump_zones(zones, which)
        case Messages():
            return to_messages(zones)
        case Immutable():
            return to_messages(zones.immutable)
        case Compressed():
            return to_messages(zones.compressed)
        case Incremental():
            return to_messages(zones.incremental)


def query_history(
    state: ActorState, message: History | SearchHistory
) -> Reply[HistoryPage | tuple[HistoryEntry, ...]]:
    """Answer from the store, once everything so far is committed."""
    if state.journal is None:
        raise UsageError(
            "the past is kept in a store, and this conversation has none: start(…, store=…)"
        )
    limit = check_index(message.limit)
    if limit < 1:
        raise InvalidOptions(f"limit: a number from 1 on, not {limit!r}")
    text = message.after if isinstance(message, History) else message.text
    check_type("after" if isinstance(message, History) else "text", text, str)
    access, name = state.journal.access, state.conversation_id
    found: Reply[HistoryPage | tuple[HistoryEntry, ...]] = Reply()
    look = (
        partial(history_page, access.store, name, text, limit)
        if isinstance(message, History)
        else partial(search_history, access.store, name, text, limit)
    )
    state.on_committed(lambda _: found.set(Deferred(access.read(look))))
    return found


def _role(value: object) -> Role:
    try:
        return Role(cast("str", value))
    except ValueError as error:
        raise InvalidOptions(f"role: one of {', '.join(Role)}, not {value!r}") from error


def estimate_tokens(model: BoundModel, zones: Zones) -> Reply[TokenBreakdown]:
    """What a turn with the model's options would take of the window."""
    return io_loop().offload(model.estimate, zones, scratch_records(model.options))


def build_cache_report(
    model: BoundModel, tracker: PromptCacheTracker, zones: Zones
) -> Reply[CacheUsageReport]:
    """What past turns got from caches, and what the next one would get."""
    scratch, totals = scratch_records(model.options), tracker.totals
    previous = tracker.previous_request()

    def report() -> CacheUsageReport:
        size = model.measure_exactly(zones, scratch)
        whole, stored = model.with_instructions(zones), len(zones.incremental)
        comparison = compare_prefix(model, previous, whole, stored, scratch, size)
        return replace(totals, next=comparison.report)

    return io_loop().offload(report)


_PAGE = 500


def history_page(store: Store, conversation_id: str, after: str, limit: int) -> HistoryPage:
    """The next page of messages, and the cursor of the page after it."""
    remarks: list[HistoryEntry] = []
    for position, remark in _walk_history(store, conversation_id, after):
        if len(remarks) == limit:
            return HistoryPage(tuple(remarks), position)
        remarks.append(remark)
    return HistoryPage(tuple(remarks), None)


def search_history(
    store: Store, conversation_id: str, text: str, limit: int
) -> tuple[HistoryEntry, ...]:
    """Messages with words of `text`, its parents' too, the best first."""
    found: list[tuple[float, HistoryEntry]] = []
    for owner, upto in reversed(_lineage(store, conversation_id)):
        matches = search_messages(store, owner, text, limit=limit, upto=upto)
        found += ((match.score, _found_entry(owner, match)) for match in matches)
    found.sort(key=lambda each: -each[0])
    return tuple(entry for _, entry in found[:limit])


def _found_entry(owner: str, match: MessageMatch) -> HistoryEntry:
    seq, message = to_event_seq(match.seq), from_line(match.line).message
    return HistoryEntry(owner, seq, match.timestamp, match.kind, message)


def _walk_history(
    store: Store, conversation_id: str, after: str
) -> Iterator[tuple[str, HistoryEntry]]:
    """Each message with the position before it."""
    lineage = _lineage(store, conversation_id)
    owner, seq, skip = _position(after, lineage[0][0])
    names = [name for name, _ in lineage]
    if owner not in names:
        raise InvalidOptions(f"after: {after!r} is no position in this conversation's history")
    for name, upto in lineage[names.index(owner) :]:
        for entry in _entries(store, name, seq, upto):
            for number, remark in enumerate(_to_history_entries(name, entry)):
                if number >= skip:
                    yield f"{name} {entry.seq - 1} {number}", remark
            skip = 0
        seq = skip = 0


def _position(text: str, first: str) -> tuple[str, int, int]:
    if not text:
        return first, 0, 0
    try:
        owner, seq, skip = text.rsplit(" ", 2)
        return owner, int(seq), int(skip)
    except ValueError:
        raise InvalidOptions(f"after: the `next` of a page is expected, not {text!r}") from None


def _lineage(store: Store, conversation_id: str) -> Sequence[tuple[str, int | None]]:
    """The conversation and its ancestors, oldest first, each with its last relevant entry."""
    lineage: list[tuple[str, int | None]] = []
    name, upto = conversation_id, None
    while True:
        lineage.append((name, upto))
        # Not by the first entry, which a vacuum may have removed.
        parent = store.load(name, upto=0).parent
        if parent is None:
            return lineage[::-1]
        name, upto = parent.id, parent.seq


def _entries(store: Store, name: str, after: int, upto: int | None) -> Iterator[Entry]:
    while entries := store.entries(name, after=after, upto=upto, limit=_PAGE):
        yield from entries
        after = entries[-1].seq


def _to_history_entries(name: str, entry: Entry) -> list[HistoryEntry]:
    return [
        HistoryEntry(name, to_event_seq(entry.seq), entry.timestamp, entry.kind, record.message)
        for record in messages_in_entry(entry)
    ]
