"""Entries and writes, as a conversation would make them."""

from __future__ import annotations

import orjson

from agent_context.stores.store import Entry, Store, Write


def entry(seq: int, text: str = "hello", *, key: str | None = None, at: float = 1.0) -> Entry:
    return Entry(seq, "appended", orjson.dumps({"content": text}), at, key)


def write(
    conversation_id: str, head: int, *texts: str, epoch: int = 1, draft: bytes | None = None
) -> Write:
    entries = tuple(entry(head + number, text) for number, text in enumerate(texts, start=1))
    return Write(
        conversation_id=conversation_id, epoch=epoch, head=head, entries=entries, draft=draft
    )


def texts(store: Store, conversation_id: str) -> list[str]:
    """What the log says, and proof that it has no gap."""
    entries = store.entries(conversation_id, limit=1_000_000)
    assert [each.seq for each in entries] == list(range(1, len(entries) + 1))
    return [orjson.loads(each.payload)["content"] for each in entries]
