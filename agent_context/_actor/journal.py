"""The journal of a durable conversation: its writes to the store, in order.

The actor hands over what a message changed, all of it in one write, and goes on. What follows from
a change - its answer, its event - happens when the write is committed, in the order of the changes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, Literal, cast

from msgspec import Struct

from agent_context._actor.changes import ConversationState
from agent_context._actor.checkpoint import TurnCheckpoint, encode_checkpoint
from agent_context._actor.snapshot_codec import encode_snapshot
from agent_context._runtime import Failure, Reply
from agent_context.errors import InvalidMessage
from agent_context.stores.store import KEEP_DRAFT, Entry, Unchanged, Write
from agent_context.stores.write_check import MAX_PAYLOAD_BYTES
from agent_context.stores.writer import StoreExecutor
from agent_context.stream import Stream

__all__ = ["Journal", "LogTail", "WriteFailed", "after_commit"]

logger = logging.getLogger(__name__)

OnCommitted = Callable[[BaseException | None], object]
"""Called when all that was changed so far is committed, or with the error if it can't be."""

_LEAST_BYTES: Final = 32_768
_ENTRY_BYTES: Final = 150
"""What an entry costs to read beside its payload, as bytes of payload that take as long."""
_SNAPSHOT_PART: Final = 16
"""A snapshot is read about so many times faster than the same bytes of the log."""
_LEAST_SPARED: Final = 6_000
"""Bytes of the log that it is worth to spare the next owner the reading of."""


class LogTail(Struct):
    """What has to be read of a conversation when it wakes: its snapshot, and the log behind it."""

    entries: int = 0
    size: int = 0
    """Bytes of their payloads."""
    snapshot_size: int = 0
    """Bytes of the snapshot in front; 0 if there is none."""

    def add(self, entries: Iterable[Entry]) -> None:
        """Count what is written or read behind the snapshot."""
        for entry in entries:
            self.entries += 1
            self.size += len(entry.payload)

    @property
    def cost(self) -> int:
        """What the log behind the snapshot costs to read, in bytes of payload."""
        return self.size + _ENTRY_BYTES * self.entries

    def needs_snapshot(self) -> bool:
        """Whether reading what was added since the last one takes longer than reading all else.

        So a conversation that only grows writes each message about twice, however long it is.
        """
        return self.cost >= max(_LEAST_BYTES, self.snapshot_size)

    def is_worth_sparing(self) -> bool:
        """Whether the next owner should find a snapshot instead.

        So it wakes in about the time that the snapshot takes, and one that is parked after each
        few words doesn't write all of them again each time.
        """
        return self.cost >= max(_LEAST_SPARED, self.snapshot_size // _SNAPSHOT_PART)


class WriteFailed(Struct, frozen=True):
    """Tells the actor that a write failed: the conversation has to be reloaded."""


class Journal:
    """The writes of one owner of a conversation. Only `checkpoint` is safe from other threads."""

    def __init__(
        self,
        access: StoreExecutor,
        conversation_id: str,
        epoch: int,
        head: int,
        tail: LogTail | None = None,
    ) -> None:
        self.access = access
        self.conversation_id = conversation_id
        self.epoch = epoch
        self.error: BaseException | None = None
        """Why nothing can be written any more: what is in memory is not what is kept."""
        self.on_loss: Callable[[], object] | None = None
        """Called once when there is an `error`."""
        self.lost_turn: TurnCheckpoint | None = None
        """The turn that ran when the owner before was lost."""
        self._lock = Lock()
        self._head = head
        self._entries: list[Entry] = []
        self._draft: bytes | Literal[Unchanged.UNCHANGED] | None = KEEP_DRAFT
        self._running: str | None = None
        self._waiting: list[OnCommitted] = []
        self._last: Reply[None] | None = None
        self._tail = tail or LogTail()
        self._saving: Reply[None] | None = None

    def add(self, kind: str, payload: bytes, key: str | None = None) -> None:
        """Add an entry to the next `commit`. Raises `InvalidMessage` if no store can keep it."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise InvalidMessage(
                f"{len(payload):,} bytes in one change are too many, {MAX_PAYLOAD_BYTES:,} are"
                " allowed: keep what is so large elsewhere, and a reference to it here"
            )
        seq = self._head + len(self._entries) + 1
        self._entries.append(Entry(seq, kind, payload, time.time(), key))

    def set_running_turn(self, draft: TurnCheckpoint | None) -> None:
        """Set the checkpoint of the running turn; None if no turn runs."""
        self._draft = None if draft is None else encode_checkpoint(draft)
        with self._lock:
            self._running = None if draft is None else draft.turn_id

    def on_committed(self, then: OnCommitted) -> None:
        """Call `then` once everything so far is committed and announced."""
        if self._entries or self._draft is not KEEP_DRAFT:
            self._waiting.append(then)
        elif self._last is not None:
            self._last.add_done_callback(lambda reply: then(reply.error()))
        else:
            then(self.error)

    @property
    def settled(self) -> bool:
        """Whether everything so far is committed: nothing waits, and nothing has failed."""
        last = self._last
        waits = self._entries or self._draft is not KEEP_DRAFT
        return not waits and (last is None or (last.done() and last.error() is None))

    def commit(self) -> Reply[None] | None:
        """Submit what was added. The reply covers everything so far; None if that is committed."""
        if self._entries or self._draft is not KEEP_DRAFT:
            self._submit()
        return None if self.settled else self._last

    def _submit(self) -> None:
        entries, self._entries = tuple(self._entries), []
        waiting, self._waiting = self._waiting, []
        draft, self._draft = self._draft, KEEP_DRAFT
        self._tail.add(entries)
        with self._lock:
            committed = self._write(entries, draft)
            self._head += len(entries)
        last: Reply[None] = Reply()
        self._last = last
        committed.add_done_callback(lambda reply: self._settle(waiting, last, reply.error()))

    def _write(
        self, entries: tuple[Entry, ...], draft: bytes | Literal[Unchanged.UNCHANGED] | None
    ) -> Reply[None]:
        write = Write(
            conversation_id=self.conversation_id,
            epoch=self.epoch,
            head=self._head,
            entries=entries,
            draft=draft,
        )
        return self.access.submit(write)

    def _settle(
        self, waiting: list[OnCommitted], last: Reply[None], error: BaseException | None
    ) -> None:
        self._on_error(error)
        for then in waiting:
            try:
                then(error)
            except Exception:
                # Those behind it wait for the same.
                logger.exception("what follows from a change failed")
        # At the end: whoever finds it settled must not overtake those that waited.
        last.set(None if error is None else Failure(error))

    def _on_error(self, error: BaseException | None) -> None:
        if error is None or self.error is not None:
            return
        self.error = error
        logger.warning("conversation %s could not be kept: %s", self.conversation_id, error)
        if self.on_loss is not None:
            self.on_loss()

    def checkpoint(self, draft: TurnCheckpoint) -> Reply[None] | None:
        """Write a checkpoint of a running turn; None if it has ended. From any thread."""
        text = encode_checkpoint(draft)
        with self._lock:
            if self._running != draft.turn_id:
                return None
            noted = self._write((), text)
        noted.add_done_callback(lambda reply: self._on_error(reply.error()))
        return noted

    def needs_snapshot(self) -> bool:
        """Whether a snapshot is due."""
        return self._tail.needs_snapshot()

    def snapshot(self, state: ConversationState) -> None:
        """Save a snapshot of this state in the background."""
        written = self._tail
        # A guess until it is encoded.
        self._tail = LogTail(snapshot_size=written.snapshot_size + written.size)

        def then(error: BaseException | None) -> None:
            if error is None:
                self._saving = self.access.read(self._save, state)
                self._saving.add_done_callback(_log_failure)

        self.on_committed(then)

    def _save(self, state: ConversationState) -> None:
        snapshot = encode_snapshot(state)
        self._tail.snapshot_size = len(snapshot.payload)
        self.access.store.save_snapshot(self.conversation_id, self.epoch, snapshot)

    def release(self, state: ConversationState) -> Reply[None]:
        """Give up ownership once everything is committed."""
        released: Reply[None] = Reply()
        worth_it = self._tail.is_worth_sparing()
        self._tail = LogTail()  # no other is wanted beside it

        def let_go() -> None:
            if worth_it and self.error is None:
                self._save(state)
            self.access.store.release(self.conversation_id, self.epoch)

        def go(_: Reply[None] | None = None) -> None:
            letting_go = self.access.read(let_go)
            letting_go.add_done_callback(_log_failure)
            letting_go.add_done_callback(lambda _: released.set(None))

        def then(_: BaseException | None) -> None:
            if self._saving is None:
                go()
            else:
                self._saving.add_done_callback(go)

        self.on_committed(then)
        return released


def _log_failure(reply: Reply[None]) -> None:
    if (error := reply.error()) is not None:
        logger.warning("a conversation's snapshot or release was not kept: %s", error)


def after_commit(kept: Reply[None], answer: object) -> object:
    """The answer, delivered once every earlier change is committed.

    One that comes later waits for that itself; a stream may be had at once.
    """
    if isinstance(answer, Reply | Stream):
        return cast("object", answer)
    reply: Reply[object] = Reply()
    kept.add_done_callback(
        lambda _: reply.set(Failure(error) if (error := kept.error()) else answer)
    )
    return reply
