"""What a conversation holds: immutable, compressed and incremental messages, as one value.

Every edit returns new `Zones` that share what did not change, so a snapshot, a fork or a rewind
costs nothing that grows with the length. Indexes of edits are indexes of the incremental zone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import reduce
from itertools import chain

from agent_context.errors import IndexOutOfRange
from agent_context.groups import open_calls, open_calls_after
from agent_context.records import Record
from agent_context.vector import EMPTY, Vector

__all__ = ["Zone", "Zones"]


class Zone(StrEnum):
    """The three places where a message is kept."""

    IMMUTABLE = "immutable"
    COMPRESSED = "compressed"
    INCREMENTAL = "incremental"


class Zones:
    """The three zones. A request is their concatenation, followed by the turn's scratch."""

    __slots__ = ("_protects", "compressed", "immutable", "incremental", "open_calls")

    def __init__(
        self,
        immutable: Vector = EMPTY,
        compressed: Vector = EMPTY,
        incremental: Vector = EMPTY,
        pending: tuple[str, ...] | None = None,
        *,
        protects: bool | None = None,
    ) -> None:
        self.immutable: Vector = immutable
        self.compressed: Vector = compressed
        self.incremental: Vector = incremental
        self.open_calls: tuple[str, ...] = open_calls(incremental) if pending is None else pending
        """Ids of the tool calls since the last user message that have no result yet."""
        self._protects = protects

    @property
    def protects(self) -> bool:
        """Whether there may be incremental messages that compressions leave alone.

        Looked up once; what only adds to these zones, or cuts them back, knows it from them.
        """
        if self._protects is None:
            self._protects = any(map(_is_protected, self.incremental))
        return self._protects

    def __len__(self) -> int:
        return len(self.immutable) + len(self.compressed) + len(self.incremental)

    def __iter__(self) -> Iterator[Record]:
        return chain(self.immutable, self.compressed, self.incremental)

    def zone(self, zone: Zone) -> Vector:
        """The records of one zone."""
        match zone:
            case Zone.IMMUTABLE:
                return self.immutable
            case Zone.COMPRESSED:
                return self.compressed
            case Zone.INCREMENTAL:
                return self.incremental

    def get(self, index: int) -> Record:
        """The record at `index` of the concatenation. Raises `IndexOutOfRange`."""
        _check(index, len(self))
        for vector in (self.immutable, self.compressed):
            if index < len(vector):
                return vector[index]
            index -= len(vector)
        return self.incremental[index]

    def append(self, record: Record) -> Zones:
        """With `record` at the end. O(1), whatever the length."""
        pending = open_calls_after(self.open_calls, record)
        known = self._protects
        return Zones(
            self.immutable,
            self.compressed,
            self.incremental.append(record),
            pending,
            protects=known if known is None else known or _is_protected(record),
        )

    def extend(self, records: Iterable[Record]) -> Zones:
        """With `records` at the end."""
        records = tuple(records)
        if not records:
            return self
        pending = reduce(open_calls_after, records, self.open_calls)
        known = self._protects
        return Zones(
            self.immutable,
            self.compressed,
            self.incremental.extend(records),
            pending,
            protects=known if known is None else known or any(map(_is_protected, records)),
        )

    def insert(self, index: int, records: Iterable[Record]) -> Zones:
        """With `records` before the one at `index`; `index == len` appends."""
        _check(index, len(self.incremental) + 1, length=len(self.incremental))
        return self._edited(self.incremental.insert(index, records))

    def update(self, index: int, record: Record) -> Zones:
        """With `record` in the place of the one at `index`."""
        _check(index, len(self.incremental))
        return self._edited(self.incremental.replace(index, record))

    def remove(self, index: int) -> Zones:
        """Without the record at `index`."""
        _check(index, len(self.incremental))
        return self._edited(self.incremental.remove(index))

    def retain(self, keep: Callable[[Record], bool]) -> Zones:
        """With only the incremental records that `keep` wants; itself if that is all of them."""
        kept = [record for record in self.incremental if keep(record)]
        if len(kept) == len(self.incremental):
            return self
        return self._edited(Vector.of(kept))

    def rewind(self, length: int) -> Zones:
        """With only the first `length` incremental records. O(1) in the length of the rest."""
        _check(length, len(self.incremental) + 1, length=len(self.incremental))
        return Zones(
            self.immutable,
            self.compressed,
            self.incremental.take(length),
            protects=self._protects,
        )

    def compress(self, compressed: Vector, incremental: Vector) -> Zones:
        """With what a compression made of the two zones that it may change."""
        return Zones(self.immutable, compressed, incremental)

    def _edited(self, incremental: Vector) -> Zones:
        return Zones(self.immutable, self.compressed, incremental)


def _is_protected(record: Record) -> bool:
    return record.protection is not None


def _check(index: int, bound: int, *, length: int | None = None) -> None:
    if not 0 <= index < bound:
        raise IndexOutOfRange(index, bound if length is None else length)
