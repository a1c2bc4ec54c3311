"""Snapshots of a conversation's state; messages stay packed until they are read."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
from msgspec import Struct

from agent_context._actor.changes import ConversationState
from agent_context._context.packed_messages import (
    MessageRow,
    PackedVector,
    from_row,
    pack,
    to_row,
    unpack,
)
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.zones import Zones
from agent_context.errors import StoreCorrupt
from agent_context.stores.store import Snapshot

__all__ = ["decode_snapshot", "encode_snapshot"]

_FORMAT: Final = 2
_FLAT_FORMAT: Final = 1
"""What 0.1 wrote: all messages in one compressed piece."""

_CHECKSUM: Final = 4
"""Bytes of it, in front of the rest."""

_Rows = list[MessageRow]


class _Undo(Struct, array_like=True):
    compressed: _Rows | None
    """None if it is as now."""
    common: int
    """How many incremental messages are as now."""
    rest: _Rows


class _FlatForm(Struct, array_like=True):
    version: int
    compressions: int
    immutable: _Rows
    compressed: _Rows
    incremental: _Rows
    undo: _Undo | None


class _Form(Struct, array_like=True):
    version: int
    compressions: int
    immutable: PackedVector
    compressed: PackedVector
    incremental: PackedVector
    open_calls: tuple[str, ...]
    has_pinned: bool
    undo: _Undo | None


_encoder = msgspec.msgpack.Encoder()
_flat_decoder = msgspec.msgpack.Decoder(_FlatForm)
_decoder = msgspec.msgpack.Decoder(_Form)


def encode_snapshot(state: ConversationState) -> Snapshot:
    """Encode the state. Takes about a millisecond per 100 kB of messages that were unpacked."""
    zones = state.zones
    form = _Form(
        state.version,
        state.compressions,
        pack(zones.immutable),
        pack(zones.compressed),
        pack(zones.incremental),
        zones.open_calls,
        zones.has_pinned,
        _undo(zones, state.undo),
    )
    payload = _encoder.encode(form)
    return Snapshot(state.seq, _FORMAT, _checksum(payload) + payload)


def decode_snapshot(snapshot: Snapshot) -> ConversationState | None:
    """Decode a snapshot; None if its format is unknown.

    Raises `StoreCorrupt`: messages that are read later are whole.
    """
    try:
        match snapshot.format:
            case 2:
                return _decode(snapshot)
            case 1:
                return _decode_flat(snapshot)
            case _:
                return None
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StoreCorrupt(
            f"the snapshot of entry {snapshot.seq} can't be read: {error}"
        ) from error


def _decode(snapshot: Snapshot) -> ConversationState:
    payload = memoryview(snapshot.payload)[_CHECKSUM:]
    if snapshot.payload[:_CHECKSUM] != _checksum(payload):
        raise StoreCorrupt(f"the snapshot of entry {snapshot.seq} is not what was written")
    form = _decoder.decode(payload)
    zones = Zones(
        unpack(form.immutable),
        unpack(form.compressed),
        unpack(form.incremental),
        form.open_calls,
        has_pinned=form.has_pinned,
    )
    return _state(snapshot, form, zones)


def _decode_flat(snapshot: Snapshot) -> ConversationState:
    form = _flat_decoder.decode(zlib.decompress(snapshot.payload))
    zones = Zones(_vector(form.immutable), _vector(form.compressed), _vector(form.incremental))
    return _state(snapshot, form, zones)


def _state(snapshot: Snapshot, form: _Form | _FlatForm, zones: Zones) -> ConversationState:
    undo = None if form.undo is None else _undone(zones, form.undo)
    return ConversationState(zones, snapshot.seq, form.version, form.compressions, undo)


def _checksum(payload: bytes | memoryview) -> bytes:
    return zlib.crc32(payload).to_bytes(_CHECKSUM)


def _undo(zones: Zones, before: Zones | None) -> _Undo | None:
    if before is None:
        return None
    common = zones.incremental.shared_length(before.incremental)
    changed = before.compressed is not zones.compressed
    return _Undo(
        _rows(before.compressed) if changed else None,
        common,
        [to_row(record) for record in before.incremental.tail(common)],
    )


def _undone(zones: Zones, undo: _Undo) -> Zones:
    compressed = zones.compressed if undo.compressed is None else _vector(undo.compressed)
    rest = _vector(undo.rest)
    return zones.compress(compressed, zones.incremental.head(undo.common).extend(rest))


def _rows(vector: PersistentVector) -> _Rows:
    return [to_row(record) for record in vector]


def _vector(rows: _Rows) -> PersistentVector:
    return PersistentVector.of(map(from_row, rows))
