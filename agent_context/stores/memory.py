"""Conversations kept in memory: for tests, and for programs that can do without a file.

It promises all that a store on disk does, but to outlive the process.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Any
from uuid import uuid4

import orjson

from agent_context.errors import Fenced, StoreError, StoreUnavailable
from agent_context.stores.message_search import forget_indexes, search_entries
from agent_context.stores.store import (
    KEEP_DRAFT,
    Claim,
    ConversationInfo,
    Entry,
    FeedEntry,
    ForkOrigin,
    HealthCheck,
    Log,
    Snapshot,
    Store,
    VacuumResult,
    Write,
)
from agent_context.stores.write_check import (
    WriteStatus,
    check_attachment,
    check_snapshot,
    check_text,
    check_write,
    deleted_conversation,
    encode_metadata,
    fenced_write,
    sequence_conflict,
    state_unavailable,
    unknown_conversation,
)

__all__ = ["MemoryStore"]


@dataclass(slots=True)
class _Kept:
    """All that is kept of one conversation."""

    id: str
    created_at: float
    updated_at: float
    parent: ForkOrigin | None
    epoch: int = 0
    head: int = 0
    owner: str | None = None
    draft: bytes | None = None
    metadata: bytes = b"{}"
    deleted: bool = False
    emptied: bool = False
    entries: dict[int, Entry] = field(default_factory=dict[int, Entry])
    epochs: dict[int, int] = field(default_factory=dict[int, int])
    keys: dict[str, int] = field(default_factory=dict[str, int])
    snapshots: dict[int, Snapshot] = field(default_factory=dict[int, Snapshot])
    attachments: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def base(self, upto: int) -> Snapshot | None:
        """The newest snapshot that is not newer than entry `upto`."""
        seq = max((seq for seq in self.snapshots if seq <= upto), default=None)
        return None if seq is None else self.snapshots[seq]

    def behind(self, after: int, upto: int) -> Iterator[Entry]:
        kept = (self.entries.get(seq) for seq in range(max(after, 0) + 1, upto + 1))
        return (entry for entry in kept if entry is not None)

    def holds(self, write: Write) -> bool:
        """Whether the write is kept already."""
        return all(
            self.epochs.get(entry.seq) == write.epoch and self.entries[entry.seq] == entry
            for entry in write.entries
        )

    def about(self) -> ConversationInfo:
        return ConversationInfo(
            id=self.id,
            head=self.head,
            created_at=self.created_at,
            updated_at=self.updated_at,
            metadata=orjson.loads(self.metadata),
            owner=self.owner,
            parent=self.parent,
        )


class MemoryStore(Store):
    """Keeps conversations in this process."""

    def __init__(self) -> None:
        self._node = f"memory:{uuid4().hex}"
        self._lock = Lock()
        self._closed = False
        self._kept: dict[str, _Kept] = {}
        self._feed: list[FeedEntry] = []
        self._position = 0

    def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
        check_text("conversation id", conversation_id)
        with self._conversations():
            kept = self._kept.get(conversation_id) or self._create(conversation_id, parent)
            if kept.deleted:
                raise deleted_conversation(conversation_id)
            kept.epoch += 1
            kept.owner = self._node
            return Claim(kept.epoch, kept.head, kept.draft)

    def release(self, conversation_id: str, epoch: int) -> None:
        with self._conversations():
            kept = self._alive(conversation_id)
            if kept is not None and kept.epoch == epoch:
                kept.owner = None

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        with self._conversations():
            return [self._write(write) for write in batch]

    def save_snapshot(self, conversation_id: str, epoch: int, snapshot: Snapshot) -> None:
        check_snapshot(conversation_id, snapshot)
        with self._conversations():
            kept = self._alive(conversation_id)
            if kept is None or kept.epoch != epoch:
                raise fenced_write(conversation_id, epoch, kept.epoch if kept else None)
            if snapshot.seq > kept.head:
                raise Fenced(f"conversation {conversation_id} has no entry {snapshot.seq} yet")
            kept.snapshots[snapshot.seq] = snapshot
            self._drop_old_snapshots(kept)

    def load(self, conversation_id: str, *, upto: int | None = None) -> Log:
        with self._conversations():
            kept, last = self._readable(conversation_id, upto)
            return self._log(kept, last)

    def entries(
        self, conversation_id: str, *, after: int = 0, upto: int | None = None, limit: int = 1000
    ) -> Sequence[Entry]:
        with self._conversations():
            kept, last = self._readable(conversation_id, upto)
            return tuple(islice(kept.behind(after, last), max(limit, 0)))

    def find_by_key(self, conversation_id: str, key: str) -> Entry | None:
        with self._conversations():
            kept = self._alive(conversation_id)
            return kept.entries.get(kept.keys.get(key, 0)) if kept else None

    def feed(self, *, after: int = 0, limit: int = 1000) -> Sequence[FeedEntry]:
        with self._conversations():
            start = bisect_right(self._feed, after, key=lambda fed: fed.position)
            rest = islice(self._feed, start, None)
            alive = (fed for fed in rest if self._alive(fed.conversation_id))
            return tuple(islice(alive, max(limit, 0)))

    def search(self, conversation_id: str, text: str, *, limit: int = 10) -> Sequence[Entry]:
        return search_entries(self, conversation_id, text, limit)

    def info(self, conversation_id: str) -> ConversationInfo | None:
        with self._conversations():
            kept = self._alive(conversation_id)
            return kept.about() if kept else None

    def conversations(self, *, after: str = "", limit: int = 100) -> Sequence[ConversationInfo]:
        with self._conversations():
            ids = sorted(
                each.id for each in self._kept.values() if each.id > after and not each.deleted
            )
            return tuple(self._kept[each].about() for each in ids[: max(limit, 0)])

    def set_metadata(self, conversation_id: str, metadata: Mapping[str, Any]) -> None:
        encoded = encode_metadata(metadata)
        with self._conversations():
            self._known(conversation_id).metadata = encoded

    def put_attachment(self, conversation_id: str, name: str, payload: bytes | None) -> None:
        check_attachment(name, payload)
        with self._conversations():
            attachments = self._known(conversation_id).attachments
            if payload is None:
                attachments.pop(name, None)
            else:
                attachments[name] = payload

    def get_attachment(self, conversation_id: str, name: str) -> bytes | None:
        with self._conversations():
            kept = self._alive(conversation_id)
            return kept.attachments.get(name) if kept else None

    def delete(self, conversation_id: str) -> bool:
        with self._conversations():
            kept = self._alive(conversation_id)
            if kept is None:
                return False
            kept.deleted = True
            kept.epoch += 1
            kept.owner = kept.draft = None
        forget_indexes(self, conversation_id)
        return True

    def vacuum(self, *, before: float | None = None) -> VacuumResult:
        forget_indexes(self)
        with self._conversations():
            points = self._points()
            emptied = removed = 0
            for kept in self._kept.values():
                needed = points.get(kept.id, set())
                if not kept.deleted:
                    removed += self._remove(kept, _needless(kept, needed, before))
                elif not kept.emptied and not needed:
                    removed += self._remove(kept, list(kept.entries))
                    kept.snapshots.clear()
                    kept.attachments.clear()
                    kept.metadata = b"{}"
                    kept.emptied = True
                    emptied += 1
            return VacuumResult(emptied, removed)

    def health(self) -> Sequence[HealthCheck]:
        with self._conversations():
            return (HealthCheck("durable", ok=False, text="kept in memory: gone with the process"),)

    def close(self) -> None:
        self._closed = True

    @contextmanager
    def _conversations(self) -> Generator[None]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            yield

    def _create(self, conversation_id: str, parent: ForkOrigin | None) -> _Kept:
        if parent is not None:
            self._check_parent(parent)
        now = time.time()
        kept = _Kept(conversation_id, created_at=now, updated_at=now, parent=parent)
        self._kept[conversation_id] = kept
        return kept

    def _check_parent(self, parent: ForkOrigin) -> None:
        kept = self._known(parent.id)
        if not 0 <= parent.seq <= kept.head:
            raise state_unavailable(parent)
        self._log(kept, parent.seq)

    def _alive(self, conversation_id: str) -> _Kept | None:
        kept = self._kept.get(conversation_id)
        return None if kept is None or kept.deleted else kept

    def _known(self, conversation_id: str) -> _Kept:
        kept = self._alive(conversation_id)
        if kept is None:
            raise unknown_conversation(conversation_id)
        return kept

    def _readable(self, conversation_id: str, upto: int | None) -> tuple[_Kept, int]:
        """The conversation, and up to which entry it may be read."""
        kept = self._kept.get(conversation_id)
        if kept is None:
            raise unknown_conversation(conversation_id)
        last = kept.head
        if kept.deleted:
            last = max(self._points().get(conversation_id, ()), default=-1)
        if last < 0:
            raise unknown_conversation(conversation_id)
        return kept, last if upto is None else min(upto, last)

    def _log(self, kept: _Kept, last: int) -> Log:
        snapshot = kept.base(last)
        after = snapshot.seq if snapshot else 0
        entries = tuple(kept.behind(after, last))
        if len(entries) != last - after:
            raise state_unavailable(ForkOrigin(kept.id, last))
        return Log(snapshot, entries, kept.parent)

    def _write(self, write: Write) -> StoreError | None:
        kept = self._alive(write.conversation_id)
        if kept is None:
            return fenced_write(write.conversation_id, write.epoch, None)
        verdict = check_write(write, kept.epoch, kept.head)
        if isinstance(verdict, StoreError):
            return verdict
        if verdict is WriteStatus.OLD:
            return None if kept.holds(write) else sequence_conflict(write)
        keys = [entry.key for entry in write.entries if entry.key is not None]
        if not kept.keys.keys().isdisjoint(keys) or len(set(keys)) < len(keys):
            return StoreError(f"conversation {kept.id}: one of the keys {keys} is used already")
        self._keep(kept, write)
        return None

    def _keep(self, kept: _Kept, write: Write) -> None:
        for entry in write.entries:
            self._position += 1
            kept.entries[entry.seq] = entry
            kept.epochs[entry.seq] = write.epoch
            self._feed.append(FeedEntry(self._position, kept.id, entry))
            if entry.key is not None:
                kept.keys[entry.key] = entry.seq
        kept.head = write.head + len(write.entries)
        kept.updated_at = time.time()
        if write.draft is not KEEP_DRAFT:
            kept.draft = write.draft

    def _points(self) -> dict[str, set[int]]:
        """After which entries of which conversations forks begin that are still there."""
        points: dict[str, set[int]] = {}
        for kept in self._kept.values():
            ancestor = None if kept.deleted else kept.parent
            while ancestor is not None:
                points.setdefault(ancestor.id, set()).add(ancestor.seq)
                ancestor = self._kept[ancestor.id].parent
        return points

    def _drop_old_snapshots(self, kept: _Kept) -> None:
        ends = {*self._points().get(kept.id, ()), kept.head}
        wanted = {base.seq for base in map(kept.base, ends) if base is not None}
        kept.snapshots = {seq: kept.snapshots[seq] for seq in sorted(wanted)}

    def _remove(self, kept: _Kept, seqs: Sequence[int]) -> int:
        if not seqs:
            return 0
        for seq in seqs:
            key = kept.entries.pop(seq).key
            kept.epochs.pop(seq)
            if key is not None:
                kept.keys.pop(key)
        gone_now = set(seqs)
        self._feed = [
            fed
            for fed in self._feed
            if fed.conversation_id != kept.id or fed.entry.seq not in gone_now
        ]
        return len(seqs)


def _needless(kept: _Kept, points: set[int], before: float | None) -> list[int]:
    """Entries older than `before` whose place a snapshot takes, and that no fork begins behind."""
    newest = kept.base(kept.head)
    if before is None or newest is None:
        return []
    bases = {point: kept.base(point) for point in points}
    needed = {
        entry.seq
        for point, base in bases.items()
        for entry in kept.behind(base.seq if base else 0, point)
    }
    old: list[int] = []
    for entry in kept.behind(0, newest.seq):
        if entry.timestamp >= before:
            break
        if entry.seq not in needed:
            old.append(entry.seq)
    return old
