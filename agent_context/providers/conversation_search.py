"""What was said in a conversation, whether the model still sees it or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from threading import Lock
from typing import NamedTuple, Protocol, runtime_checkable

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context.events import (
    Appended,
    ChangeEvent,
    Cleared,
    Extended,
    Inserted,
    Loaded,
    Popped,
    Removed,
    Retained,
    Rewound,
    Updated,
)
from agent_context.messages import Message
from agent_context.protocol import HistoryEntry, Messages, SearchHistory, Subscribe
from agent_context.ref import ContextRef
from agent_context.stores.text_search import TextIndex

__all__ = [
    "DatedHistorySearch",
    "FoundMessage",
    "HistorySearch",
    "ObservedHistorySearch",
    "StoreHistorySearch",
]


class FoundMessage(NamedTuple):
    """A message, and when it was said."""

    message: Message
    timestamp: float | None
    """Unix seconds; None if that isn't known."""


class HistorySearch(Protocol):
    """Where a conversation's past can be searched."""

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """Messages that hold words of `text`, the best first."""
        ...


@runtime_checkable
class DatedHistorySearch(HistorySearch, Protocol):
    """One that also knows when a message was said."""

    async def find(self, text: str, limit: int) -> Sequence[FoundMessage]:
        """What `search` finds, with its time."""
        ...


class StoreHistorySearch:
    """The past of a conversation with a store: all that was ever said, removed messages included.

    Of what a compression made of it there is nothing.
    """

    def __init__(self, conversation: ContextRef) -> None:
        self._conversation = conversation

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """What the store finds, each message as it was said first."""
        return tuple(found.message for found in await self.find(text, limit))

    async def find(self, text: str, limit: int) -> Sequence[FoundMessage]:
        """What the store finds, with the time at which it was kept."""
        remarks = await self._conversation.aask(SearchHistory(text, limit))
        first: dict[str, HistoryEntry] = {}
        for remark in remarks:
            if remark.kind != "compressed":
                known = first.setdefault(remark.message.id, remark)
                if remark.seq < known.seq:
                    first[remark.message.id] = remark
        return tuple(FoundMessage(each.message, each.timestamp) for each in first.values())


class _Observed:
    """A message that was heard, and its place in the index."""

    __slots__ = ("number", "record", "timestamp")

    def __init__(self, record: StoredMessage, timestamp: float | None) -> None:
        self.record = record
        self.timestamp = timestamp
        self.number: int | None = None


class ObservedHistorySearch:
    """The past of a conversation that no store keeps, as far as it was listened to.

    The `most` latest messages are remembered, each as it was said first. What was taken out of the
    conversation on purpose is forgotten; what a compression took away is not.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self._said: dict[str, _Observed] = {}
        self._index = TextIndex()
        self._by_number: list[str] = []
        self._indexed = 0
        """How many of the messages, the oldest first, the index knows."""
        self._lock = Lock()
        self._heard: ContextRef | None = None

    async def listen(self, conversation: ContextRef) -> None:
        """Hear what is said in a conversation from now on, and know what it holds already."""
        if self._heard is conversation:
            return
        self._heard = conversation
        await conversation.aask(Subscribe(self.on_change))
        self._keep(await conversation.aask(Messages()), None)

    def on_change(self, event: ChangeEvent) -> None:
        """Remember what a change brought."""
        match event:
            case Appended() | Inserted():
                self._keep((event.message,), time.time())
            case Extended():
                self._keep(event.messages, time.time())
            case Updated():
                self._forget((event.old,))
                self._keep((event.new,), time.time())
            case Removed() | Popped():
                self._forget((event.message,))
            case Cleared() | Retained() | Rewound():
                self._forget(event.removed)
            case Loaded():
                self._keep((*event.immutable, *event.compressed, *event.incremental), time.time())
            case _:
                pass

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """The messages that match best; of equals the newest."""
        return tuple(found.message for found in await self.find(text, limit))

    async def find(self, text: str, limit: int) -> Sequence[FoundMessage]:
        """The same, with the time at which each was heard; None for what was there before."""
        return await asyncio.to_thread(self._find, text, limit)

    def _find(self, text: str, limit: int) -> Sequence[FoundMessage]:
        with self._lock:
            self._catch_up()
            hits = self._index.search(text, limit)
            found = [self._said[self._by_number[number]] for number, _ in hits]
        return tuple(FoundMessage(each.record.message, each.timestamp) for each in found)

    def _catch_up(self) -> None:
        """Put into the index what came since the last search."""
        if len(self._by_number) > 2 * len(self._said) + 100:  # most of it is of what was forgotten
            self._index, self._by_number, self._indexed = TextIndex(), [], 0
        for name, observed in islice(self._said.items(), self._indexed, None):
            observed.number = self._index.add(observed.record.message.text)
            self._by_number.append(name)
        self._indexed = len(self._said)

    def _forget(self, messages: Iterable[Message]) -> None:
        with self._lock:
            for message in messages:
                self._drop(message.id)

    def _keep(self, messages: Iterable[Message], timestamp: float | None) -> None:
        with self._lock:
            for message in messages:
                if message.id not in self._said:
                    self._said[message.id] = _Observed(from_message(message), timestamp)
            while len(self._said) > self._most:
                self._drop(next(iter(self._said)))

    def _drop(self, message_id: str) -> None:
        observed = self._said.pop(message_id, None)
        if observed is not None and observed.number is not None:
            self._index.remove(observed.number)
            self._indexed -= 1
