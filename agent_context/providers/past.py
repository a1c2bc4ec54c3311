"""What was said in a conversation, whether the model still sees it or not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

from agent_context.errors import InvalidMessage
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
from agent_context.protocol import Messages, Subscribe
from agent_context.records import Record, record_of
from agent_context.ref import ContextRef
from agent_context.stores.access import Access
from agent_context.stores.store import Store
from agent_context.stores.words import words_of
from agent_context.wire.payload import items_in, mapping_in

__all__ = ["HeardPast", "Past", "StoredPast", "messages_in"]

_ENTRIES_PER_MESSAGE = 4
"""Entries that are searched for each message that is wanted: several may hold the same one."""


class Past(Protocol):
    """Where a conversation's past can be searched."""

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """Messages that hold words of `text`, the best first."""
        ...


class StoredPast:
    """The past of a conversation that a store keeps: all of its log, removed messages included."""

    def __init__(self, store: Store, conversation_id: str) -> None:
        self._store = store
        self._conversation_id = conversation_id

    async def search(self, text: str, limit: int) -> Sequence[Message]:
        """The messages of the entries that the store finds, as they were said first."""
        entries = await Access.of(self._store).read(
            self._store.search, self._conversation_id, text, limit=limit * _ENTRIES_PER_MESSAGE
        )
        oldest_first = sorted(entries, key=lambda entry: entry.seq)
        said = [message for entry in oldest_first for message in messages_in(entry.payload)]
        return _best(map(record_of, _first_ones(said)), text, limit)


class HeardPast:
    """The past of a conversation that no store keeps, as far as it was listened to.

    The `most` latest messages are remembered, each as it was said first. What was taken out of the
    conversation on purpose is forgotten; what a compression took away is not.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self._said: dict[str, Record] = {}
        self._lock = Lock()
        self._heard: ContextRef | None = None

    async def listen(self, conversation: ContextRef) -> None:
        """Hear what is said in a conversation from now on, and know what it holds already."""
        if self._heard is conversation:
            return
        self._heard = conversation
        await conversation.aask(Subscribe(self.hear))
        self._keep(await conversation.aask(Messages()))

    def hear(self, event: ChangeEvent) -> None:
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
                self._said.setdefault(message.id, record_of(message))
            while len(self._said) > self._most:
                del self._said[next(iter(self._said))]


def messages_in(payload: bytes) -> Iterator[Message]:
    """The messages that a JSON text holds, at whatever depth."""
    try:
        # Not orjson: this one takes a lone surrogate that somebody escaped.
        value = json.loads(payload)
    except ValueError:
        return
    yield from _messages(value)


def _messages(value: object) -> Iterator[Message]:
    fields = mapping_in(value)
    if "role" in fields and ("content" in fields or "parts" in fields):
        message = _message(fields)
        if message is not None:
            yield message
            return
    for item in (*fields.values(), *items_in(value)):
        yield from _messages(item)


def _message(fields: Mapping[str, Any]) -> Message | None:
    try:
        return Message.model_validate(fields)
    except InvalidMessage:
        return None


def _first_ones(messages: Iterable[Message]) -> Iterable[Message]:
    first: dict[str, Message] = {}
    for message in messages:
        first.setdefault(message.id, message)
    return first.values()


def _best(said: Iterable[Record], text: str, limit: int) -> Sequence[Message]:
    words = words_of(text)
    found: list[tuple[int, int, Message]] = []
    for place, record in enumerate(said):
        # Text in the bytes may be escaped, so that they tell nothing; but to parse is cheap.
        message = record.message
        lower = message.text.lower()
        if hits := sum(word in lower for word in words):
            found.append((-hits, -place, message))
    found.sort(key=lambda hit: hit[:2])
    return tuple(message for _, _, message in found[:limit])
