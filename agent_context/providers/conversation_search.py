"""What was said in a conversation, whether the model still sees it or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import Lock
from typing import Protocol

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
from agent_context.stores.text_search import query_words

__all__ = ["HistorySearch", "ObservedHistorySearch", "StoreHistorySearch"]


class HistorySearch(Protocol):
    """Where a conversation's past can be searched."""

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """Messages that hold words of `text`, the best first."""
        ...


class StoreHistorySearch:
    """The past of a conversation with a store: all that was ever said, removed messages included.

    Of what a compression made of it there is nothing.
    """

    def __init__(self, conversation: ContextRef) -> None:
        self._conversation = conversation

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """What the store finds, each message as it was said first."""
        remarks = await self._conversation.aask(SearchHistory(text, limit))
        first: dict[str, HistoryEntry] = {}
        for remark in remarks:
            if remark.kind != "compressed":
                known = first.setdefault(remark.message.id, remark)
                if remark.seq < known.seq:
                    first[remark.message.id] = remark
        return tuple(remark.message for remark in first.values())


class ObservedHistorySearch:
    """The past of a conversation that no store keeps, as far as it was listened to.

    The `most` latest messages are remembered, each as it was said first. What was taken out of the
    conversation on purpose is forgotten; what a compression took away is not.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self._said: dict[str, StoredMessage] = {}
        self._lock = Lock()
        self._heard: ContextRef | None = None

    async def listen(self, conversation: ContextRef) -> None:
        """Hear what is said in a conversation from now on, and know what it holds already."""
        if self._heard is conversation:
            return
        self._heard = conversation
        await conversation.aask(Subscribe(self.on_change))
        self._keep(await conversation.aask(Messages()))

    def on_change(self, event: ChangeEvent) -> None:
        """Remember what a change brought."""
        match event:
            case Appended() | Inserted():
                self._keep((event.message,))
            case Extended():
                self._keep(event.messages)
            case Updated():
                self._forget((event.old,))
                self._keep((event.new,))
            case Removed() | Popped():
                self._forget((event.message,))
            case Cleared() | Retained() | Rewound():
                self._forget(event.removed)
            case Loaded():
                self._keep((*event.immutable, *event.compressed, *event.incremental))
            case _:
                pass

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """The messages with the most of the words; of equals the newest."""
        with self._lock:
            said = list(self._said.values())
        return _best(said, text, limit)

    def _forget(self, messages: Iterable[Message]) -> None:
        with self._lock:
            for message in messages:
                self._said.pop(message.id, None)

    def _keep(self, messages: Iterable[Message]) -> None:
        with self._lock:
            for message in messages:
                self._said.setdefault(message.id, from_message(message))
            while len(self._said) > self._most:
                del self._said[next(iter(self._said))]


def _best(said: Iterable[StoredMessage], text: str, limit: int) -> Sequence[Message]:
    words = query_words(text)
    found: list[tuple[int, int, Message]] = []
    for place, record in enumerate(said):
        # Text in the bytes may be escaped, so that they tell nothing; but to parse is cheap.
        message = record.message
        lower = message.text.lower()
        if hits := sum(word in lower for word in words):
            found.append((-hits, -place, message))
    found.sort(key=lambda hit: hit[:2])
    return tuple(message for _, _, message in found[:limit])
