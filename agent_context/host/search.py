"""Finding what was said in any of a store's conversations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent_context._actor.changes import check_index
from agent_context._actor.queries import search_history
from agent_context._validation import check_type
from agent_context.errors import InvalidOptions, UnknownConversation
from agent_context.protocol import HistoryEntry
from agent_context.stores.store import Store
from agent_context.stores.text_search import TextIndex

__all__ = ["search_conversations"]

_PAGE = 500
_APART = 2
"""Empty texts between two, so that they aren't neighbours."""


def search_conversations(store: Store, text: str, limit: int, prefix: str) -> list[HistoryEntry]:
    """The best messages of all conversations whose ids begin with `prefix`, the best first."""
    check_type("text", text, str)
    check_type("prefix", prefix, str)
    if check_index(limit) < 1:
        raise InvalidOptions(f"limit: a number from 1 on, not {limit!r}")
    found: dict[tuple[str, int, str], HistoryEntry] = {}
    for conversation_id in _ids(store, prefix):
        for entry in _search(store, conversation_id, text, limit):
            # Forks share their parent's past.
            found[entry.conversation_id, entry.seq, entry.message.id] = entry
    return _rank(list(found.values()), text, limit)


def _search(store: Store, name: str, text: str, limit: int) -> Sequence[HistoryEntry]:
    try:
        return search_history(store, name, text, limit)
    except UnknownConversation:
        return ()  # deleted in the meantime


def _ids(store: Store, prefix: str) -> Iterator[str]:
    if prefix and store.info(prefix) is not None:
        yield prefix
    after = prefix
    while page := store.conversations(after=after, limit=_PAGE):
        for info in page:
            if not info.id.startswith(prefix):
                return
            yield info.id
        after = page[-1].id


def _rank(entries: list[HistoryEntry], text: str, limit: int) -> list[HistoryEntry]:
    """By one measure for all: how rare a word is in one conversation says nothing of the others."""
    entries.sort(key=lambda entry: entry.timestamp)
    index = TextIndex()
    for entry in entries:
        index.add(entry.message.text)
        for _ in range(_APART):
            index.add("")
    return [entries[number // (_APART + 1)] for number, _ in index.search(text, limit)]
