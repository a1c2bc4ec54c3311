"""Everything that was ever said in a durable conversation, whatever became of it since."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_context.conversation.log import said_in
from agent_context.errors import InvalidOptions
from agent_context.protocol import HistoryPage, Remark
from agent_context.stores.store import Entry, Store
from agent_context.stores.words import words_of

__all__ = ["page", "recalled"]

_PAGE = 500


def page(store: Store, conversation_id: str, after: str, limit: int) -> HistoryPage:
    """The next so many messages, and where to go on."""
    remarks: list[Remark] = []
    for position, remark in _remarks(store, conversation_id, after):
        if len(remarks) == limit:
            return HistoryPage(tuple(remarks), position)
        remarks.append(remark)
    return HistoryPage(tuple(remarks), None)


def recalled(store: Store, conversation_id: str, text: str, limit: int) -> tuple[Remark, ...]:
    """Messages that hold words of `text`, the best first; those of its parents follow."""
    found: list[Remark] = []
    for owner, upto in reversed(_lineage(store, conversation_id)):
        for entry in _searched(store, owner, text, upto, limit):
            found += _matching(_remarks_of(owner, entry), text)
    return tuple(found[:limit])


def _searched(store: Store, name: str, text: str, upto: int | None, limit: int) -> list[Entry]:
    """The best entries up to one: better ones may stand behind it, so it looks for ever more."""
    wanted = limit
    while True:
        entries = store.search(name, text, limit=wanted)
        fitting = [entry for entry in entries if upto is None or entry.seq <= upto]
        if len(fitting) >= limit or len(entries) < wanted:
            return fitting[:limit]
        wanted *= 4


def _matching(remarks: list[Remark], text: str) -> list[Remark]:
    """Those of an entry's messages that hold a word; all of them if the store knows better."""
    words = words_of(text)
    holding = [each for each in remarks if any(w in each.message.text.lower() for w in words)]
    return holding or remarks


def _remarks(store: Store, conversation_id: str, after: str) -> Iterator[tuple[str, Remark]]:
    """Each message with the position before it."""
    lineage = _lineage(store, conversation_id)
    owner, seq, skip = _position(after, lineage[0][0])
    names = [name for name, _ in lineage]
    if owner not in names:
        raise InvalidOptions(f"after: {after!r} is no position in this conversation's history")
    for name, upto in lineage[names.index(owner) :]:
        for entry in _entries(store, name, seq, upto):
            for number, remark in enumerate(_remarks_of(name, entry)):
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
    """The conversation and those that it branched off, the oldest first, with their last entry."""
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


def _remarks_of(name: str, entry: Entry) -> list[Remark]:
    return [
        Remark(name, entry.seq, entry.at, entry.kind, record.message) for record in said_in(entry)
    ]
