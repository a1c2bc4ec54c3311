"""The payload of an entry of the log: JSON fields, whole zones, and zones in terms of older ones.

A message in it is its `StoredMessage.to_json_line()`, so that it comes back byte for byte; a part
of a zone that a change left alone is a pair of old indexes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import orjson
from msgspec import Raw, Struct

from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.stored_message import StoredMessage, from_line
from agent_context._context.zones import Zones

__all__ = [
    "PayloadFields",
    "ZonePatch",
    "decode_fields",
    "decode_patch",
    "decode_record",
    "decode_vector",
    "diff_zone",
    "encode_list",
    "encode_object",
    "encode_zones",
    "patch_zone",
]

ZonePatch = tuple[StoredMessage | tuple[int, int], ...]
"""A zone as new records and runs of its old ones, each from an index up to another."""


class PayloadFields(Struct):
    """All fields that a payload may have."""

    parent: str | None = None
    seq: int = 0
    at: int | None = None
    message: Raw = Raw()
    messages: list[Raw] = []
    answer: Raw = Raw()
    index: int = 0
    to: int = 0
    kept: list[Raw] = []
    summary: str | None = None
    immutable: list[Raw] = []
    compressed: list[Raw] = []
    incremental: list[Raw] = []

    def zones(self) -> Zones:
        """The three zones that the payload holds."""
        return Zones(
            decode_vector(self.immutable),
            decode_vector(self.compressed),
            decode_vector(self.incremental),
        )

    def records(self) -> tuple[StoredMessage, ...]:
        """Every message that the payload brings."""
        several = (*self.messages, *self.immutable, *self.compressed, *self.incremental)
        lines = map(bytes, (self.message, *several))
        return tuple(from_line(line) for line in lines if line.startswith(b"{"))


def diff_zone(old: PersistentVector, new: PersistentVector) -> ZonePatch:
    """`new` in terms of `old`."""
    if new is old:
        return ((0, len(old)),) if len(old) else ()
    places = {id(record): index for index, record in enumerate(old)}
    items: list[StoredMessage | tuple[int, int]] = []
    for record in new:
        place, last = places.get(id(record)), items[-1] if items else None
        if place is None:
            items.append(record)
        elif isinstance(last, tuple) and last[1] == place:
            items[-1] = (last[0], place + 1)
        else:
            items.append((place, place + 1))
    return tuple(items)


def patch_zone(old: PersistentVector, patch: ZonePatch) -> PersistentVector:
    """The zone that `patch` makes of `old`."""
    if patch == ((0, len(old)),):
        return old
    before = tuple(old)
    records: list[StoredMessage] = []
    for item in patch:
        records += before[slice(*item)] if isinstance(item, tuple) else (item,)
    return PersistentVector.of(records) if records else EMPTY


def encode_object(fields: Mapping[str, object], **raw: bytes | None) -> bytes:
    """A JSON object of plain fields and of those whose JSON is there already."""
    start = orjson.dumps(fields)[:-1]
    named = (b'"%s":%s' % (name.encode(), value) for name, value in raw.items() if value)
    return start + (b"," if fields else b"") + b",".join(named) + b"}"


def encode_zones(zones: Zones) -> bytes:
    """The payload that holds three whole zones."""
    names = ("immutable", "compressed", "incremental")
    return encode_object({}, **{name: encode_list(getattr(zones, name)) for name in names})


def decode_fields(payload: bytes) -> PayloadFields:
    """Raises `msgspec.MsgspecError`."""
    return msgspec.json.decode(payload, type=PayloadFields)


def encode_list(items: Iterable[StoredMessage | tuple[int, int]]) -> bytes:
    each = (i.to_json_line() if isinstance(i, StoredMessage) else orjson.dumps(i) for i in items)
    return b"[" + b",".join(each) + b"]"


def decode_record(raw: Raw) -> StoredMessage:
    return from_line(bytes(raw))


def decode_vector(raws: list[Raw]) -> PersistentVector:
    return PersistentVector.of(map(decode_record, raws)) if raws else EMPTY


def decode_patch(raws: Iterable[Raw]) -> ZonePatch:
    return tuple(_patch_item(bytes(raw)) for raw in raws)


def _patch_item(raw: bytes) -> StoredMessage | tuple[int, int]:
    if not raw.startswith(b"["):
        return from_line(raw)
    start, stop = orjson.loads(raw)
    return start, stop
