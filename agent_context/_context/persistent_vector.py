"""A persistent sequence of records: every edit gives a new one that shares almost all of the old.

Records lie in full chunks of 32 and a shorter tail, so an append copies at most a tail and, once in
32 times, the row of chunks. Nothing is ever written in place: a vector may be read by any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import Final

from agent_context._context.stored_message import StoredMessage

__all__ = ["CHUNK", "EMPTY", "PersistentVector"]

CHUNK: Final = 32
"""Records in a full chunk."""


class PersistentVector:
    """An immutable sequence of records."""

    __slots__ = ("chunks", "rest")

    def __init__(
        self,
        chunks: tuple[Sequence[StoredMessage], ...] = (),
        rest: tuple[StoredMessage, ...] = (),
    ) -> None:
        self.chunks: tuple[Sequence[StoredMessage], ...] = chunks
        """Full ones: tuples, or what is equal to nothing but itself."""
        self.rest: tuple[StoredMessage, ...] = rest
        """What follows them, fewer than a chunk."""

    @staticmethod
    def of(records: Iterable[StoredMessage]) -> PersistentVector:
        """A vector of these records, in order."""
        return EMPTY.extend(records)

    def __len__(self) -> int:
        return len(self.chunks) * CHUNK + len(self.rest)

    def __iter__(self) -> Iterator[StoredMessage]:
        return chain(chain.from_iterable(self.chunks), self.rest)

    def __reversed__(self) -> Iterator[StoredMessage]:
        return chain(
            reversed(self.rest),
            chain.from_iterable(reversed(chunk) for chunk in reversed(self.chunks)),
        )

    def __getitem__(self, index: int) -> StoredMessage:
        """The record at `index`, counted from 0; the caller has checked the range."""
        chunk, offset = divmod(index, CHUNK)
        return self.chunks[chunk][offset] if chunk < len(self.chunks) else self.rest[offset]

    def append(self, record: StoredMessage) -> PersistentVector:
        """With `record` at the end."""
        tail = (*self.rest, record)
        if len(tail) < CHUNK:
            return PersistentVector(self.chunks, tail)
        return PersistentVector((*self.chunks, tail))

    def extend(self, records: Iterable[StoredMessage]) -> PersistentVector:
        """With `records` at the end."""
        records = tuple(records)
        if not records:
            return self
        rest = (*self.rest, *records)
        whole = len(rest) - len(rest) % CHUNK
        full = tuple(rest[i : i + CHUNK] for i in range(0, whole, CHUNK))
        return PersistentVector((*self.chunks, *full), rest[whole:])

    def head(self, length: int) -> PersistentVector:
        """The first `length` records."""
        chunks, rest = divmod(length, CHUNK)
        if chunks >= len(self.chunks):
            return PersistentVector(self.chunks, self.rest[: length - len(self.chunks) * CHUNK])
        # A chunk that lies packed is not read for nothing of it.
        part = tuple(self.chunks[chunks][:rest]) if rest else ()
        return PersistentVector(self.chunks[:chunks], part)

    def tail(self, length: int) -> tuple[StoredMessage, ...]:
        """What follows the first `length` records."""
        chunks, rest = divmod(length, CHUNK)
        if chunks >= len(self.chunks):
            return self.rest[length - len(self.chunks) * CHUNK :]
        later = chain.from_iterable(self.chunks[chunks + 1 :])
        return (*self.chunks[chunks][rest:], *later, *self.rest)

    def replace(self, index: int, record: StoredMessage) -> PersistentVector:
        """With `record` in the place of the one at `index`."""
        chunk, offset = divmod(index, CHUNK)
        if chunk == len(self.chunks):
            return PersistentVector(self.chunks, _put(self.rest, offset, record))
        changed = _put(self.chunks[chunk], offset, record)
        return PersistentVector(
            (*self.chunks[:chunk], changed, *self.chunks[chunk + 1 :]), self.rest
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
        chunks, rest = divmod(length, CHUNK)
        # Tuples compare their items by identity first, and so do records: all of it runs in C.
        same = self.chunks is other.chunks or self.chunks[:chunks] == other.chunks[:chunks]
        if not same or not rest:
            return same
        one, two = self._chunk(chunks), other._chunk(chunks)
        return one is two or tuple(one[:rest]) == tuple(two[:rest])

    def shared_length(self, other: PersistentVector) -> int:
        """How many records both begin with that are the same objects."""
        shared = 0
        for one, two in zip(self.chunks, other.chunks, strict=False):
            if one is not two:
                break
            shared += CHUNK
        pairs = zip(self._from(shared), other._from(shared), strict=False)
        return shared + sum(1 for _ in takewhile(_is_same, pairs))

    def common_prefix_length(self, other: PersistentVector) -> int:
        """How many records both begin with that say the same; ids may differ."""
        if self.shares_prefix(other, len(self)):
            return len(self)
        count = 0
        for one, two in zip(self.chunks, other.chunks, strict=False):
            if one != two:
                break
            count += CHUNK
        pairs = zip(self._from(count), other._from(count), strict=False)
        return count + sum(1 for _ in takewhile(_equal, pairs))

    def _from(self, start: int) -> Iterator[StoredMessage]:
        return chain(chain.from_iterable(self.chunks[start // CHUNK :]), self.rest)

    def _chunk(self, index: int) -> Sequence[StoredMessage]:
        return self.chunks[index] if index < len(self.chunks) else self.rest


EMPTY = PersistentVector()


def _put(
    chunk: Sequence[StoredMessage], offset: int, record: StoredMessage
) -> tuple[StoredMessage, ...]:
    return (*chunk[:offset], record, *chunk[offset + 1 :])


def _is_same(pair: tuple[StoredMessage, StoredMessage]) -> bool:
    return pair[0] is pair[1]


def _equal(pair: tuple[StoredMessage, StoredMessage]) -> bool:
    one, two = pair
    return one is two or one.body == two.body
