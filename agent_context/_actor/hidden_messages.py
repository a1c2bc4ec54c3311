"""The messages that compressions took out of a conversation, and how they are found again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
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
"""Characters of what somebody said."""
_SHOWN_OF_RESULT: Final = 400
"""Characters of a tool's result."""
_ARGUMENTS: Final = 200
"""Characters of the arguments of a call."""
_MOST_BYTES: Final = 16 << 20
"""Bytes of messages that are remembered; the oldest are forgotten first."""
_MESSAGE: Final = 4
"""Tokens that a message takes beside its text."""
_FARTHEST: Final = 32
"""How many messages apart a call and its result may be."""
_BEST: Final = 3
_MISSES: Final = 8
"""So many that don't fit are passed over for shorter ones that are less good."""
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
    """The messages that compressions took away, with an index that searches make.

    The index has what the model still sees, too: that counts as found already. Any thread may use
    it.
    """

    def __init__(self, load: Callable[[], Iterable[StoredMessage]] | None = None) -> None:
        """`load` gives those of the past; the first search calls it."""
        self._lock = Lock()
        self._load = load
        self._records: list[StoredMessage] = []
        """By their number in the index; in the order in which they were said."""
        self._numbers: dict[tuple[MessageId, bytes], int] = {}
        self._hidden: dict[int, None] = {}
        """The numbers of those that were taken away, oldest first."""
        self._bytes = 0
        """Of those."""
        self._index = TextIndex()
        self._recent: list[StoredMessage] = []
        """What was taken away since the last search, and is not in the index as such."""

    def note(self, change: Change, before: Zones, after: Zones) -> None:
        """Remember what a compression hides; forget everything for another history."""
        if isinstance(change, Loaded):
            if is_replaced(before, after):
                with self._lock:
                    self._load, self._recent, self._hidden, self._bytes = None, [], {}, 0
        elif isinstance(change, Compressed):
            with self._lock:
                self._recent += hidden_between(before, after)

    def copy(self) -> HiddenMessages:
        """The same messages, for a conversation that goes on by itself."""
        with self._lock:
            copied = HiddenMessages(self._load)
            copied._recent = [*(self._records[number] for number in self._hidden), *self._recent]
        return copied

    def recall(
        self,
        query: str,
        settings: Recall,
        shown: Sequence[StoredMessage],
        *,
        budget: int,
        count: Callable[[str], int],
    ) -> RecalledMessages | None:
        """What `query` asks for, within `budget` tokens; None if there is nothing.

        `shown` are the messages that are sent anyway: what of them matches takes its part of the
        budget, as if it had been found, and if the best is among them there is nothing to find.
        """
        with self._lock:
            self._catch_up()
            numbers = {self._number(record) for record in shown}
            visible = numbers if settings.floor else set[int]()
            possible = self._index.best_score(query)
            hits = self._index.search(
                query,
                _CANDIDATES + budget // _TOKENS_A_CANDIDATE,
                lambda number: (
                    number in visible or (number in self._hidden and number not in numbers)
                ),
            )
            if _is_in_sight(hits, visible):
                return None
            scores = {
                number: min(score / possible, 1.0)
                for number, score in hits
                if score >= settings.floor * possible
            }
            room = budget - count(_HEADING) - _MESSAGE
            lines = self._choose(scores, visible, _Quotes(query, count), room)
            records = {number: self._records[number] for number in sorted(lines)}
        if not records:
            return None
        text = "\n".join((_HEADING, *(lines[number] for number in records)))
        return RecalledMessages(
            record=from_message(Message.user(text)),
            ids=tuple(record.id for record in records.values()),
            scores=tuple(round(scores.get(number, 0.0), 3) for number in records),
            words=tuple(query_words(query)),
            tokens=count(text) + _MESSAGE,
        )

    def _choose(
        self, scores: Mapping[int, float], visible: Collection[int], quotes: _Quotes, budget: int
    ) -> dict[int, str]:
        """The best groups that fit, each message as a line, by its number."""
        lines: dict[int, str] = {}
        misses = 0
        said = {self._records[number].body for number in scores if number in visible}
        for number in scores:
            if budget <= 0 or misses > _MISSES:
                break
            record = self._records[number]
            if number in visible:
                budget -= quotes.tokens([quotes.quote(record)])
            elif number not in lines and record.body not in said:
                group = {
                    each: quotes.quote(self._records[each])
                    for each in self._group(number)
                    if each in self._hidden and each not in visible and each not in lines
                }
                if (tokens := quotes.tokens(group.values())) <= budget:
                    budget -= tokens
                    lines |= group
                    said.add(record.body)
                else:
                    misses += 1
        return lines

    def _group(self, number: int) -> Sequence[int]:
        """The numbers of a message and of what it makes no sense without.

        That is a result's call, and a call's results.
        """
        records = self._records
        calls = set(records[number].call_ids)
        if not calls:
            return (number,)
        if records[number].role is Role.TOOL:
            earlier = range(number - 1, max(number - _FARTHEST, -1), -1)
            owner = (
                each
                for each in earlier
                if records[each].role is not Role.TOOL and calls <= set(records[each].call_ids)
            )
            return (*islice(owner, 1), number)
        later = range(number + 1, min(number + _FARTHEST, len(records)))
        results = takewhile(lambda each: records[each].role is Role.TOOL, later)
        return (number, *results)

    def _catch_up(self) -> None:
        """Read what the store has, once, and put into the index what is new."""
        if self._load is not None:
            self._hide(self._load())
            self._load = None
        recent, self._recent = self._recent, []
        self._hide(recent)

    def _hide(self, records: Iterable[StoredMessage]) -> None:
        for record in records:
            number = self._number(record)
            if number not in self._hidden:
                self._hidden[number] = None
                self._bytes += len(record.body)
        while self._bytes > _MOST_BYTES:
            oldest = next(iter(self._hidden))
            del self._hidden[oldest]
            self._bytes -= len(self._records[oldest].body)
            self._index.remove(oldest)

    def _number(self, record: StoredMessage) -> int:
        """The number of a message in the index, which it is added to."""
        key = record.id, record.body
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = self._index.add(record.message.text)
            self._records.append(record)
        return known


def _is_in_sight(hits: Sequence[tuple[int, float]], visible: Collection[int]) -> bool:
    """Whether most of the best that was found is in the window: then nothing else is asked for."""
    best = [number for number, _ in hits[:_BEST]]
    return 2 * sum(number in visible for number in best) > len(best)


class _Quotes:
    """How messages are quoted for a query, and what that takes."""

    def __init__(self, query: str, count: Callable[[str], int]) -> None:
        self._query = query
        self._count = count

    def tokens(self, lines: Iterable[str]) -> int:
        return sum(self._count(line) + 1 for line in lines)

    def quote(self, record: StoredMessage) -> str:
        """Who said it and what; of a long text where it holds most of the query."""
        content = record.fields().get("content")
        if isinstance(content, str) and not record.call_ids:
            return f"{record.role}: {self._excerpt(content)}"  # most are: a value costs more
        message = record.message
        is_result = record.role is Role.TOOL
        who = f"tool {message.name}" if message.name and is_result else str(record.role)
        calls = [f"{call.name}({call.arguments[:_ARGUMENTS]})" for call in message.tool_calls]
        text = self._excerpt(message.text, _SHOWN_OF_RESULT if is_result else _SHOWN)
        return f"{who}: {' '.join(filter(None, (text, *calls)))}"

    def _excerpt(self, text: str, length: int = _SHOWN) -> str:
        start, end = find_excerpt(text, self._query, length)
        shown = f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
        # Indented, so that no text can pass for a line that somebody else said.
        return "\n    ".join(shown.splitlines())
