"""A conversation's state as one compact value, which is read in a few milliseconds."""

from __future__ import annotations

import zlib
from itertools import takewhile
from typing import Final

import msgspec
from msgspec import Struct

from agent_context._actor.changes import ConversationState
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.errors import StoreCorrupt
from agent_context.messages import Role
from agent_context.stores.store import Snapshot

__all__ = ["decode_snapshot", "encode_snapshot"]

_FORMAT: Final = 1


class _Row(Struct, array_like=True, gc=False):
    id: str
    role: Role
    body: bytes
    calls: tuple[str, ...]


_Rows = list[_Row]


class _Undo(Struct, array_like=True):
    compressed: _Rows | None
    """None if it is as now."""
    common: int
    """How many incremental messages are as now."""
    rest: _Rows


class _Form(Struct, array_like=True):
    version: int
    compressions: int
    immutable: _Rows
    compressed: _Rows
    incremental: _Rows
    undo: _Undo | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Form)


def encode_snapshot(state: ConversationState) -> Snapshot:
    """The state, written down. Takes about a millisecond for each 100 kB."""
    zones = state.zones
    form = _Form(
        state.version,
        state.compressions,
        _rows(zones.immutable),
        _rows(zones.compressed),
        _rows(zones.incremental),
        _undo(zones, state.undo),
    )
    return Snapshot(state.seq, _FORMAT, zlib.compress(_encoder.encode(form), level=1))


def decode_snapshot(snapshot: Snapshot) -> ConversationState | None:
    """What was written; None if another version wrote it in a way of its own.

    Raises `StoreCorrupt`.
    """
    if snapshot.format != _FORMAT:
        return None
    try:
        form = _decoder.decode(zlib.decompress(snapshot.payload))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise StoreCorrupt(
            f"the snapshot of entry {snapshot.seq} can't be read: {error}"
        ) from error
    zones = Zones(_vector(form.immutable), _vector(form.compressed), _vector(form.incremental))
    undo = None if form.undo is None else _undone(zones, form.undo)
    return ConversationState(zones, snapshot.seq, form.version, form.compressions, undo)


def _undo(zones: Zones, before: Zones | None) -> _Undo | None:
    if before is None:
        return None
    pairs = zip(zones.incremental, before.incremental, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
    changed = before.compressed is not zones.compressed
    return _Undo(
        _rows(before.compressed) if changed else None,
        common,
        [_row(record) for record in before.incremental.tail(common)],
    )


def _undone(zones: Zones, undo: _Undo) -> Zones:
    compressed = zones.compressed if undo.compressed is None else _vector(undo.compressed)
    rest = _vector(undo.rest)
    return zones.compress(compressed, zones.incremental.head(undo.common).extend(rest))


def _rows(vector: PersistentVector) -> _Rows:
    return [_row(record) for record in vector]


def _row(record: StoredMessage) -> _Row:
    return _Row(record.id, record.role, record.body, record.call_ids)


def _vector(rows: _Rows) -> PersistentVector:
    return PersistentVector.of(StoredMessage(row.id, row.role, row.body, row.calls) for row in rows)
