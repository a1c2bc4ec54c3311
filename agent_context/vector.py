"""A persistent sequence of records: every edit gives a new one that shares almost all of the old.

Records lie in full chunks of 32 and a shorter tail, so an append copies at most a tail and, once in
32 times, the row of chunks. Nothing is ever written in place: a vector may be read by any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import is_

from agent_context.records import Record

__all__ = ["EMPTY", "Vector"]

_CHUNK = 32


class Vector:
    """An immutable sequence of records."""

    __slots__ = ("_full", "_tail")

    def __init__(
        self, full: tuple[tuple[Record, ...], ...] = (), tail: tuple[Record, ...] = ()
    ) -> None:
        self._full = full
        self._tail = tail

    @staticmethod
    def of(records: Iterable[Record]) -> Vector:
        """A vector of these records, in order."""
        return EMPTY.extend(records)

    def __len__(self) -> int:
        return len(self._full) * _CHUNK + len(self._tail)

    def __iter__(self) -> Iterator[Record]:
        return chain(chain.from_iterable(self._full), self._tail)

    def __reversed__(self) -> Iterator[Record]:
        return chain(
            reversed(self._tail),
            chain.from_iterable(reversed(chunk) for chunk in reversed(self._full)),
        )

    def __getitem__(self, index: int) -> Record:
        """The record at `index`, counted from 0; the caller has checked the range."""
        chunk, offset = divmod(index, _CHUNK)
        return self._full[chunk][offset] if chunk < len(self._full) else self._tail[offset]

    def append(self, record: Record) -> Vector:
        """With `record` at the end."""
        tail = (*self._tail, record)
        if len(tail) < _CHUNK:
            return Vector(self._full, tail)
        return Vector((*self._full, tail))

    def extend(self, records: Iterable[Record]) -> Vector:
        """With `records` at the end."""
        records = tuple(records)
        if not records:
            return self
        rest = (*self._tail, *records)
        whole = len(rest) - len(rest) % _CHUNK
        full = tuple(rest[i : i + _CHUNK] for i in range(0, whole, _CHUNK))
        return Vector((*self._full, *full), rest[whole:])

    def take(self, length: int) -> Vector:
        """The first `length` records."""
        chunks, rest = divmod(length, _CHUNK)
        if chunks >= len(self._full):
            return Vector(self._full, self._tail[: length - len(self._full) * _CHUNK])
        return Vector(self._full[:chunks], self._full[chunks][:rest])

    def drop(self, length: int) -> tuple[Record, ...]:
        """What follows the first `length` records."""
        chunks, rest = divmod(length, _CHUNK)
        if chunks >= len(self._full):
            return self._tail[length - len(self._full) * _CHUNK :]
        later = chain.from_iterable(self._full[chunks + 1 :])
        return (*self._full[chunks][rest:], *later, *self._tail)

    def replace(self, index: int, record: Record) -> Vector:
        """With `record` in the place of the one at `index`."""
        chunk, offset = divmod(index, _CHUNK)
        if chunk == len(self._full):
            return Vector(self._full, _put(self._tail, offset, record))
        changed = _put(self._full[chunk], offset, record)
        return Vector((*self._full[:chunk], changed, *self._full[chunk + 1 :]), self._tail)

    def insert(self, index: int, records: Iterable[Record]) -> Vector:
        """With `records` before the one at `index`."""
        return self.take(index).extend((*records, *self.drop(index)))

    def remove(self, index: int) -> Vector:
        """Without the record at `index`."""
        return self.take(index).extend(self.drop(index + 1))

    def shares(self, other: Vector, length: int) -> bool:
        """Whether the first `length` records of both are the same objects."""
        if length > len(self) or length > len(other):
            return False
        chunks, rest = divmod(length, _CHUNK)
        same = self._full is other._full or all(
            map(_same, self._full[:chunks], other._full[:chunks])
        )
        return same and all(map(is_, self._chunk(chunks)[:rest], other._chunk(chunks)[:rest]))

    def _chunk(self, index: int) -> tuple[Record, ...]:
        return self._full[index] if index < len(self._full) else self._tail


EMPTY = Vector()


def _put(chunk: tuple[Record, ...], offset: int, record: Record) -> tuple[Record, ...]:
    return (*chunk[:offset], record, *chunk[offset + 1 :])


def _same(one: tuple[Record, ...], other: tuple[Record, ...]) -> bool:
    return one is other or all(map(is_, one, other))
