"""A persistent sequence of records: every edit gives a new one that shares almost all of the old.

Records lie in full chunks of 32 and a shorter tail, so an append copies at most a tail and, once in
32 times, the row of chunks. Nothing is ever written in place: a vector may be read by any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, takewhile

from agent_context._context.stored_message import StoredMessage

__all__ = ["EMPTY", "PersistentVector"]

_CHUNK = 32


class PersistentVector:
    """An immutable sequence of records."""

    __slots__ = ("_full", "_tail")

    def __init__(
        self, full: tuple[tuple[StoredMessage, ...], ...] = (), tail: tuple[StoredMessage, ...] = ()
    ) -> None:
        self._full = full
        self._tail = tail

    @staticmethod
    def of(records: Iterable[StoredMessage]) -> PersistentVector:
        """A vector of these records, in order."""
        return EMPTY.extend(records)

    def __len__(self) -> int:
        return len(self._full) * _CHUNK + len(self._tail)

    def __iter__(self) -> Iterator[StoredMessage]:
        return chain(chain.from_iterable(self._full), self._tail)

    def __reversed__(self) -> Iterator[StoredMessage]:
        return chain(
            reversed(self._tail),
            chain.from_iterable(reversed(chunk) for chunk in reversed(self._full)),
        )

    def __getitem__(self, index: int) -> StoredMessage:
        """The record at `index`, counted from 0; the caller has checked the range."""
        chunk, offset = divmod(index, _CHUNK)
        return self._full[chunk][offset] if chunk < len(self._full) else self._tail[offset]

    def append(self, record: StoredMessage) -> PersistentVector:
        """With `record` at the end."""
        tail = (*self._tail, record)
        if len(tail) < _CHUNK:
            return PersistentVector(self._full, tail)
        return PersistentVector((*self._full, tail))

    def extend(self, records: Iterable[StoredMessage]) -> PersistentVector:
        """With `records` at the end."""
        records = tuple(records)
        if not records:
            return self
        rest = (*self._tail, *records)
        whole = len(rest) - len(rest) % _CHUNK
        full = tuple(rest[i : i + _CHUNK] for i in range(0, whole, _CHUNK))
        return PersistentVector((*self._full, *full), rest[whole:])

    def head(self, length: int) -> PersistentVector:
        """The first `length` records."""
        chunks, rest = divmod(length, _CHUNK)
        if chunks >= len(self._full):
            return PersistentVector(self._full, self._tail[: length - len(self._full) * _CHUNK])
        return PersistentVector(self._full[:chunks], self._full[chunks][:rest])

    def tail(self, length: int) -> tuple[StoredMessage, ...]:
        """What follows the first `length` records."""
        chunks, rest = divmod(length, _CHUNK)
        if chunks >= len(self._full):
            return self._tail[length - len(self._full) * _CHUNK :]
        later = chain.from_iterable(self._full[chunks + 1 :])
        return (*self._full[chunks][rest:], *later, *self._tail)

    def replace(self, index: int, record: StoredMessage) -> PersistentVector:
        """With `record` in the place of the one at `index`."""
        chunk, offset = divmod(index, _CHUNK)
        if chunk == len(self._full):
            return PersistentVector(self._full, _put(self._tail, offset, record))
        changed = _put(self._full[chunk], offset, record)
        return PersistentVector(
            (*self._full[:chunk], changed, *self._full[chunk + 1 :]), self._tail
        )

    def insert(self, index: int, records: Iterable[StoredMessage]) -> PersistentVector:
        """With `records` before the one at `index`."""
        return self.head(index).extend((*records, *self.tail(index)))

    def remove(self, index: int) -> PersistentVector:
        """Without the record at `index`."""
        return self.head(index).extend(self.tail(index + 1))

    def shares_prefix(self, other: PersistentVector, length: int) -> bool:
        """Whether the first `length` records of both are the same objects."""
        if length > len(self) or length > len(other):
            return False
        chunks, rest = divmod(length, _CHUNK)
        # Tuples compare their items by identity first, and so do records: all of it runs in C.
        same = self._full is other._full or self._full[:chunks] == other._full[:chunks]
        return same and self._chunk(chunks)[:rest] == other._chunk(chunks)[:rest]

    def common_prefix_length(self, other: PersistentVector) -> int:
        """How many records both begin with that say the same; ids may differ."""
        if self.shares_prefix(other, len(self)):
            return len(self)
        count = 0
        for one, two in zip(self._full, other._full, strict=False):
            if one != two:
                break
            count += _CHUNK
        pairs = zip(self._from(count), other._from(count), strict=False)
        return count + sum(1 for _ in takewhile(_equal, pairs))

    def _from(self, start: int) -> Iterator[StoredMessage]:
        return chain(chain.from_iterable(self._full[start // _CHUNK :]), self._tail)

    def _chunk(self, index: int) -> tuple[StoredMessage, ...]:
        return self._full[index] if index < len(self._full) else self._tail


EMPTY = PersistentVector()


def _put(
    chunk: tuple[StoredMessage, ...], offset: int, record: StoredMessage
) -> tuple[StoredMessage, ...]:
    return (*chunk[:offset], record, *chunk[offset + 1 :])


def _equal(pair: tuple[StoredMessage, StoredMessage]) -> bool:
    one, two = pair
    return one is two or one.body == two.body
