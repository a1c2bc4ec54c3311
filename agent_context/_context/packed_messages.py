"""Messages that stay packed until they are read, so that a long conversation loads at once.

A block packs up to 256 of them. A vector holds chunks of it as it holds any others, and reading one
unpacks its block.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Final, cast, overload

import msgspec
from msgspec import Struct

from agent_context._context.persistent_vector import CHUNK, PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context.messages import MessageId, Role

__all__ = [
    "MessageRow",
    "OpenBlock",
    "PackedBlock",
    "PackedChunk",
    "PackedVector",
    "from_row",
    "hash_id",
    "pack",
    "to_row",
    "unpack",
]

_CHUNKS: Final = 8
"""Chunks in a block. Blocks of a single chunk take a third more room."""

_HASH: Final = 4
"""Bytes of an id's hash."""


class MessageRow(Struct, array_like=True, gc=False):
    """A message as it is packed."""

    id: str
    role: Role
    body: bytes
    calls: tuple[str, ...]


class PackedBlock(Struct, array_like=True, frozen=True):
    """Some consecutive chunks."""

    id_hashes: bytes
    """Of each message, by `hash_id`."""
    rows: memoryview
    """A compressed list of `MessageRow`; read, it is a view of all that was read."""


class PackedVector(Struct, array_like=True, frozen=True):
    """A vector: its chunks in blocks, and its tail."""

    blocks: list[PackedBlock]
    tail: list[MessageRow]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[MessageRow])


def to_row(record: StoredMessage) -> MessageRow:
    """The message, ready to be packed."""
    return MessageRow(record.id, record.role, record.body, record.call_ids)


def from_row(row: MessageRow) -> StoredMessage:
    """The message that was packed."""
    return StoredMessage(row.id, row.role, row.body, row.calls)


def hash_id(message_id: MessageId) -> bytes:
    """Four bytes that say which messages can't have this id."""
    return zlib.crc32(message_id.encode()).to_bytes(_HASH)


def pack(vector: PersistentVector) -> PackedVector:
    """The vector, packed. What nobody unpacked since it was read stays as it is."""
    chunks = vector.chunks
    blocks = [_pack(chunks[i : i + _CHUNKS]) for i in range(0, len(chunks), _CHUNKS)]
    return PackedVector(blocks, [to_row(record) for record in vector.rest])


def unpack(packed: PackedVector) -> PersistentVector:
    """The vector; its chunks stay packed until they are read."""
    chunks: list[Sequence[StoredMessage]] = []
    for form in packed.blocks:
        block = OpenBlock(form)
        chunks += (PackedChunk(block, at) for at in range(len(form.id_hashes) // _HASH // CHUNK))
    return PersistentVector(tuple(chunks), tuple(map(from_row, packed.tail)))


class PackedChunk(Sequence[StoredMessage]):
    """A chunk of a block. Any thread may read it, and all get the same objects."""

    __slots__ = ("at", "block")

    def __init__(self, block: OpenBlock, at: int) -> None:
        self.block = block
        self.at = at

    def __len__(self) -> int:
        return CHUNK

    @overload
    def __getitem__(self, index: int) -> StoredMessage: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[StoredMessage, ...]: ...
    def __getitem__(self, index: int | slice) -> StoredMessage | tuple[StoredMessage, ...]:
        return self.block.chunk(self.at)[index]

    def __iter__(self) -> Iterator[StoredMessage]:
        return iter(self.block.chunk(self.at))

    def __reversed__(self) -> Iterator[StoredMessage]:
        return reversed(self.block.chunk(self.at))

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same objects, as tuples compare."""
        if isinstance(other, tuple | PackedChunk):
            return self is other or tuple(self) == tuple(cast("Sequence[object]", other))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class OpenBlock:
    """A block, packed until it is read. Then its messages stay: each is itself from then on."""

    __slots__ = ("_chunks", "_lock", "id_hashes", "packed")

    def __init__(self, form: PackedBlock) -> None:
        self._lock = Lock()
        self._chunks: tuple[tuple[StoredMessage, ...], ...] = ()
        self.id_hashes = form.id_hashes
        self.packed: PackedBlock | None = form

    def chunk(self, at: int) -> tuple[StoredMessage, ...]:
        """The messages of one of its chunks; unpacks them all."""
        if self.packed is not None:
            with self._lock:
                self._unpack()
        return self._chunks[at]

    def _unpack(self) -> None:
        if self.packed is not None:
            self._chunks = tuple(_chunks(_decoder.decode(zlib.decompress(self.packed.rows))))
            self.packed = None


def _chunks(rows: list[MessageRow]) -> Iterator[tuple[StoredMessage, ...]]:
    for start in range(0, len(rows), CHUNK):
        yield tuple(map(from_row, rows[start : start + CHUNK]))


def _pack(chunks: Sequence[Sequence[StoredMessage]]) -> PackedBlock:
    if (block := _still_packed(chunks)) is not None:
        return block
    rows = [to_row(record) for chunk in chunks for record in chunk]
    hashes = b"".join(hash_id(row.id) for row in rows)
    return PackedBlock(hashes, memoryview(zlib.compress(_encoder.encode(rows), level=1)))


def _still_packed(chunks: Sequence[Sequence[StoredMessage]]) -> PackedBlock | None:
    """The block that these chunks are, all of it, if nobody has unpacked it."""
    first = chunks[0]
    if not isinstance(first, PackedChunk) or (packed := first.block.packed) is None:
        return None
    for at, chunk in enumerate(chunks):
        if not isinstance(chunk, PackedChunk) or chunk.block is not first.block or chunk.at != at:
            return None
    return packed if len(chunks) * CHUNK * _HASH == len(packed.id_hashes) else None
