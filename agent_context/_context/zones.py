"""The zones of a conversation: immutable, compressed and incremental messages, as one value.

Every edit returns new `Zones` that share what did not change, so a snapshot, a fork or a rewind
costs nothing that grows with the length. Indexes of edits are indexes of the incremental zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import reduce
from itertools import chain

from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import find_open_calls, update_open_calls
from agent_context.errors import IndexOutOfRange

__all__ = ["Zone", "Zones"]


class Zone(StrEnum):
    """The three places where a message is kept."""

    IMMUTABLE = "immutable"
    COMPRESSED = "compressed"
    INCREMENTAL = "incremental"


class Zones:
    """The three zones. A request is their concatenation, followed by the turn's scratch."""

    __slots__ = ("_has_pinned", "compressed", "immutable", "incremental", "open_calls")

    def __init__(
        self,
        immutable: PersistentVector = EMPTY,
        compressed: PersistentVector = EMPTY,
        incremental: PersistentVector = EMPTY,
        open_calls: tuple[str, ...] | None = None,
        *,
        has_pinned: bool | None = None,
    ) -> None:
        self.immutable: PersistentVector = immutable
        self.compressed: PersistentVector = compressed
        self.incremental: PersistentVector = incremental
        self.open_calls: tuple[str, ...] = (
            find_open_calls(incremental) if open_calls is None else open_calls
        )
        """Ids of the tool calls since the last user message that have no result yet."""
        self._has_pinned = has_pinned

    @property
    def has_pinned(self) -> bool:
        """Whether there may be incremental messages that compressions leave alone.

        Looked up once; what only adds to these zones, or cuts them back, knows it from them.
        """
        if self._has_pinned is None:
            self._has_pinned = any(map(_is_pinned, self.incremental))
        return self._has_pinned

    def __len__(self) -> int:
        return len(self.immutable) + len(self.compressed) + len(self.incremental)

    def __iter__(self) -> Iterator[StoredMessage]:
        return chain(self.immutable, self.compressed, self.incremental)

    def zone(self, zone: Zone) -> PersistentVector:
        """The records of one zone."""
        match zone:
            case Zone.IMMUTABLE:
                return self.immutable
            case Zone.COMPRESSED:
                return self.compressed
            case Zone.INCREMENTAL:
                return self.incremental

    def get(self, index: int) -> StoredMessage:
        """The record at `index` of the concatenation. Raises `IndexOutOfRange`."""
        _check(index, len(self))
        for vector in (self.immutable, self.compressed):
            if index < len(vector):
                return vector[index]
            index -= len(vector)
        return self.incremental[index]

    def append(self, record: StoredMessage) -> Zones:
        """With `record` at the end. O(1), whatever the length."""
        pending = update_open_calls(self.open_calls, record)
        known = self._has_pinned
        return Zones(
            self.immutable,
            self.compressed,
            self.incremental.append(record),
            pending,
            has_pinned=known if known is None else known or _is_pinned(record),
        )

    def extend(self, records: Iterable[StoredMessage]) -> Zones:
        """With `records` at the end."""
        records = tuple(records)
        if not records:
            return self
        pending = reduce(update_open_calls, records, self.open_calls)
        known = self._has_pinned
        return Zones(
            self.immutable,
            self.compressed,
            self.incremental.extend(records),
            pending,
            has_pinned=known if known is None else known or any(map(_is_pinned, records)),
        )

    def insert(self, index: int, records: Iterable[StoredMessage]) -> Zones:
        """With `records` before the one at `index`; `index == len` appends."""
        _check(index, len(self.incremental) + 1, length=len(self.incremental))
        return self._with_incremental(self.incremental.insert(index, records))

    def update(self, index: int, record: StoredMessage) -> Zones:
        """With `record` in the place of the one at `index`."""
        _check(index, len(self.incremental))
        return self._with_incremental(self.incremental.replace(index, record))

    def remove(self, index: int) -> Zones:
        """Without the record at `index`."""
        _check(index, len(self.incremental))
        return self._with_incremental(self.incremental.remove(index))

    def filter(self, keep: Callable[[StoredMessage], bool]) -> Zones:
        """With only the incremental records that `keep` accepts; itself if that is all of them."""
        kept = [record for record in self.incremental if keep(record)]
        if len(kept) == len(self.incremental):
            return self
        return self._with_incremental(PersistentVector.of(kept))

    def truncate(self, length: int) -> Zones:
        """With only the first `length` incremental records. O(1) in the length of the rest."""
        _check(length, len(self.incremental) + 1, length=len(self.incremental))
        return Zones(
            self.immutable,
            self.compressed,
            self.incremental.head(length),
            has_pinned=self._has_pinned,
        )

    def compress(self, compressed: PersistentVector, incremental: PersistentVector) -> Zones:
        """With the result of a compression in place of the two zones that it may change."""
        return Zones(self.immutable, compressed, incremental)

    def _with_incremental(self, incremental: PersistentVector) -> Zones:
        return Zones(self.immutable, self.compressed, incremental)


def _is_pinned(record: StoredMessage) -> bool:
    return record.pin is not None


def _check(index: int, bound: int, *, length: int | None = None) -> None:
    if not 0 <= index < bound:
        raise IndexOutOfRange(index, bound if length is None else length)
