"""Entries and writes for the contract of stores, and how its tests get at a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from unittest import SkipTest

from agent_context.errors import StoreError
from agent_context.stores.store import ConversationInfo, Entry, Store, Write

__all__ = ["StoreTools", "entry", "error_of", "facts", "is_refused", "only", "texts_of", "write"]


def entry(seq: int, text: str = "hello", *, key: str | None = None, at: float = 1.0) -> Entry:
    """An entry that says `text`."""
    return Entry(seq, "appended", json.dumps({"content": text}).encode(), at, key)


def write(
    conversation_id: str, head: int, *texts: str, epoch: int = 1, key: str | None = None
) -> Write:
    """Entries that say `texts`, behind entry `head`; `key` is on the last."""
    entries = [entry(head + number, text) for number, text in enumerate(texts, start=1)]
    if key is not None:
        entries[-1] = entry(head + len(texts), texts[-1], key=key)
    return Write(conversation_id=conversation_id, epoch=epoch, head=head, entries=tuple(entries))


def texts_of(store: Store, conversation_id: str) -> list[str]:
    """What the whole log says; fails if it has a gap."""
    entries = store.entries(conversation_id, limit=1_000_000)
    assert [each.seq for each in entries] == list(range(1, len(entries) + 1))
    return [json.loads(each.payload)["content"] for each in entries]


def only(store: Store, one: Write) -> StoreError | None:
    """What the store answers to a batch of this write alone."""
    (answer,) = store.write([one])
    return answer


def is_refused(kind: type[StoreError], answer: StoreError | None) -> bool:
    """Whether it is a refusal of this kind that says something."""
    return isinstance(answer, kind) and bool(str(answer))


def error_of(kind: type[Exception], action: Callable[[], object]) -> bool:
    """Whether it fails with an error of this kind that says something."""
    try:
        action()
    except kind as error:
        return bool(str(error))
    return False


def facts(store: Store, conversation_id: str) -> ConversationInfo:
    """What is known of a conversation that must be there."""
    about = store.info(conversation_id)
    assert about is not None
    return about


class StoreTools:
    """What a subclass of the contract provides."""

    def make_store(self) -> Store:
        """An open store with nothing in it."""
        raise NotImplementedError

    def reopen(self, store: Store) -> Store:
        """Close it and open it anew, as the next process would."""
        raise SkipTest(f"{type(store).__name__} keeps nothing when it is closed")

    @contextmanager
    def open(self, *conversations: str) -> Generator[Store]:
        """A store in which these are claimed for the first time."""
        store = self.make_store()
        try:
            for each in conversations:
                assert store.claim(each).epoch == 1
            yield store
        finally:
            store.close()
