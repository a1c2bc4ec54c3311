"""The messages that compressions took out of a conversation, and how they are found again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

from msgspec import Struct

from agent_context._actor.changes import Change, Compressed, Loaded
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zones
from agent_context.compression.recall import Recall
from agent_context.messages import Message, MessageId, Role
from agent_context.stores.text_search import TextIndex, find_excerpt, query_words

__all__ = ["HiddenMessages", "RecalledMessages", "hidden_between", "is_replaced"]

_HEADING: Final = (
    "[Earlier messages of this conversation that may matter here. They are quoted, not said now.]"
)
_SHOWN: Final = 1_000
"""Characters of one message."""
_ARGUMENTS: Final = 200
"""Characters of the arguments of a call."""
_MOST_BYTES: Final = 16 << 20
"""Bytes of messages that are remembered; the oldest are forgotten first."""
_CANDIDATES: Final = 20
_TOKENS_A_CANDIDATE: Final = 12
"""Fewer tokens than a message has: so many more candidates are looked at as there is room for."""


class RecalledMessages(Struct, frozen=True):
    """Messages that are sent again for one turn."""

    record: StoredMessage
    """All of them in one message."""
    ids: tuple[MessageId, ...]
    """In the order in which they were said."""
    scores: tuple[float, ...]
    """How well each matches, as a share of the best that is possible; 0 for what only belongs to
    the same call."""
    words: tuple[str, ...]
    """What was looked for."""
    tokens: int


def hidden_between(before: Zones, after: Zones) -> Iterator[StoredMessage]:
    """The messages that a compression between these zones took away or shortened."""
    left = {id(record) for record in after.incremental}
    return (record for record in before.incremental if id(record) not in left)


def is_replaced(before: Zones, after: Zones) -> bool:
    """Whether an import has put another history in the place of this one."""
    old = before.incremental
    return not after.incremental.shares_prefix(old, len(old))


class HiddenMessages:
    """The messages that compressions took away, oldest first, with an index that searches make.

    Any thread may use it.
    """

    def __init__(self, load: Callable[[], Iterable[StoredMessage]] | None = None) -> None:
        """`load` gives those of the past; the first search calls it."""
        self._lock = Lock()
        self._load = load
        self._records: list[StoredMessage] = []
        self._first = 0
        """The number of the first record that is still remembered."""
        self._bytes = 0
        self._index = TextIndex()
        self._indexed = 0

    def note(self, change: Change, before: Zones, after: Zones) -> None:
        """Remember what a compression hides; forget everything for another history."""
        if isinstance(change, Loaded):
            if is_replaced(before, after):
                with self._lock:
                    self._load, self._records, self._first, self._bytes = None, [], 0, 0
                    self._index, self._indexed = TextIndex(), 0
        elif isinstance(change, Compressed):
            with self._lock:
                self._add(hidden_between(before, after))

    def copy(self) -> HiddenMessages:
        """The same messages, for a conversation that goes on by itself."""
        with self._lock:
            copied = HiddenMessages(self._load)
            copied._add(self._records[self._first :])
        return copied

    def recall(
        self,
        query: str,
        settings: Recall,
        shown: Mapping[MessageId, bytes],
        *,
        budget: int,
        count: Callable[[str], int],
    ) -> RecalledMessages | None:
        """What `query` asks for, within `budget` tokens; None if there is nothing.

        `shown` has the bodies of the messages that are sent anyway.
        """
        with self._lock:
            self._catch_up()
            records = self._records
            words = query_words(query)

            def is_hidden(number: int) -> bool:
                record = records[number]
                return shown.get(record.id) != record.body

            possible = self._index.best_score(query)
            limit = _CANDIDATES + budget // _TOKENS_A_CANDIDATE
            hits = self._index.search(query, limit, is_hidden)
            scores = {
                number: score / possible
                for number, score in hits
                if score >= settings.floor * possible
            }
            lines = self._choose(scores, query, is_hidden, budget - count(_HEADING) - 4, count)
        if not lines:
            return None
        numbers = sorted(lines)
        text = "\n".join((_HEADING, *(lines[number] for number in numbers)))
        return RecalledMessages(
            from_message(Message.user(text)),
            tuple(records[number].id for number in numbers),
            tuple(round(min(scores.get(number, 0.0), 1.0), 3) for number in numbers),
            tuple(words),
            count(text) + 4,
        )

    def _choose(
        self,
        scores: Mapping[int, float],
        query: str,
        is_hidden: Callable[[int], bool],
        budget: int,
        count: Callable[[str], int],
    ) -> dict[int, str]:
        """The best groups that fit, each message as a line, by its number."""
        lines: dict[int, str] = {}
        said: set[bytes] = set()
        for number in scores:
            if number in lines or self._records[number].body in said:
                continue
            group = {
                each: _quote(self._records[each], query)
                for each in self._group(number)
                if each not in lines and is_hidden(each)
            }
            tokens = sum(count(line) + 1 for line in group.values())
            if tokens <= budget:
                budget -= tokens
                lines |= group
                said.add(self._records[number].body)
        return lines

    def _group(self, number: int) -> range:
        """The numbers of the messages that belong together: a call and its results."""
        records, start = self._records, number
        while start > self._first and records[start].role is Role.TOOL:
            start -= 1
        if not set(records[start].call_ids) >= set(records[number].call_ids):
            start = number  # its call is elsewhere
        end = start + 1
        while records[start].call_ids and end < len(records) and records[end].role is Role.TOOL:
            end += 1
        return range(start, max(end, number + 1))

    def _catch_up(self) -> None:
        """Read what the store has, and index what came since the last search."""
        if self._load is not None:
            recent, self._records = self._records[self._first :], []
            self._first = self._bytes = 0
            self._add(self._load())
            self._add(recent)
            self._load = None
        for number in range(self._indexed, len(self._records)):
            self._index.add(self._records[number].message.text)
            if number < self._first:
                self._index.remove(number)
        self._indexed = len(self._records)

    def _add(self, records: Iterable[StoredMessage]) -> None:
        for record in records:
            self._records.append(record)
            self._bytes += len(record.body)
        while self._bytes > _MOST_BYTES:
            self._bytes -= len(self._records[self._first].body)
            if self._first < self._indexed:
                self._index.remove(self._first)
            self._first += 1


def _quote(record: StoredMessage, query: str) -> str:
    """Who said it and what; of a long text where it holds most of the query."""
    message = record.message
    who = f"tool {message.name}" if message.name and record.role is Role.TOOL else str(record.role)
    start, end = find_excerpt(message.text, query, _SHOWN)
    more = len(message.text) > end
    text = f"{'…' if start else ''}{message.text[start:end]}{'…' if more else ''}"
    calls = [f"{call.name}({call.arguments[:_ARGUMENTS]})" for call in message.tool_calls]
    return f"{who}: {' '.join((*((text,) if text else ()), *calls))}"
