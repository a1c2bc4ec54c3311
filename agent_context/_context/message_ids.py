"""The ids that a conversation holds, found without unpacking its messages."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from agent_context._context.packed_messages import OpenBlock, PackedChunk, hash_id
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.messages import MessageId

__all__ = ["MessageIds"]

_id = attrgetter("id")

_FEW = 64
"""Up to this many messages are searched one by one: a set would take more memory."""


class MessageIds:
    """The ids of some zones. It must be told of every change to them."""

    __slots__ = ("_hashes", "_ids", "_packed")

    def __init__(self) -> None:
        self._ids: set[MessageId] | None = None
        self._packed: tuple[OpenBlock, ...] = ()
        """Blocks whose ids are not in the set: only their hashes are known."""
        self._hashes = b""

    def holds(self, message_id: MessageId, zones: Zones) -> bool:
        """Whether a message of `zones` has this id."""
        if len(zones) <= _FEW:
            self.forget()
            return message_id in map(_id, zones)
        if self._ids is None:
            self._ids = self._collect(zones)
        if self._packed and self._must_read(message_id):
            self._packed, self._hashes = (), b""
            self._ids = set(map(_id, zones))
        return message_id in self._ids

    def forget(self) -> None:
        """Start over: the zones were replaced."""
        self._ids = None

    def update(self, removed: Iterable[StoredMessage], added: Iterable[StoredMessage]) -> None:
        """Some records left the zones, others were added."""
        if self._ids is not None:
            self._ids.difference_update(map(_id, removed))
            self._ids.update(map(_id, added))

    def _collect(self, zones: Zones) -> set[MessageId]:
        ids: set[MessageId] = set()
        packed: dict[OpenBlock, None] = {}
        for vector in (zones.immutable, zones.compressed, zones.incremental):
            for chunk in vector.chunks:
                if isinstance(chunk, PackedChunk) and chunk.block.packed is not None:
                    packed[chunk.block] = None
                else:
                    ids.update(map(_id, chunk))
            ids.update(map(_id, vector.rest))
        self._packed = tuple(packed)
        self._hashes = b"".join(block.id_hashes for block in packed)
        return ids

    def _must_read(self, message_id: MessageId) -> bool:
        # Once the last block was read all of them were: a turn reads from the first on.
        return hash_id(message_id) in self._hashes or self._packed[-1].packed is None
