"""Sequences of messages that are built when they are read, so that nobody pays for a long history.

Both are frozen: what they were made from never changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import overload

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.messages import Message, Role

__all__ = ["ChainedMessages", "ConversationMessages", "as_assistant"]


class _Built(Sequence[Message]):
    """A sequence by its length and its items; a slice of it is a list."""

    __slots__ = ()

    def _at(self, index: int) -> Message:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self._at(number) for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"index {index} is out of range: there are {len(self)} messages")
        return self._at(number)


class ConversationMessages(_Built):
    """What a conversation holds beside what is immutable.

    A summary of what was said earlier is given as words of the assistant.
    """

    __slots__ = ("_compressed", "_incremental")

    def __init__(self, zones: Zones) -> None:
        self._compressed: PersistentVector = zones.compressed
        self._incremental: PersistentVector = zones.incremental

    def __len__(self) -> int:
        return len(self._compressed) + len(self._incremental)

    def __iter__(self) -> Iterator[Message]:
        return map(as_assistant, chain(self._compressed, self._incremental))

    def __reversed__(self) -> Iterator[Message]:
        return map(as_assistant, chain(reversed(self._incremental), reversed(self._compressed)))

    def _at(self, index: int) -> Message:
        first = len(self._compressed)
        return as_assistant(
            self._compressed[index] if index < first else self._incremental[index - first]
        )

    def holds(self, wanted: frozenset[str]) -> frozenset[str]:
        """Which of these ids its messages have."""
        return wanted.intersection(r.id for r in chain(self._compressed, self._incremental))


def as_assistant(record: StoredMessage) -> Message:
    """A summary as words of the assistant: the one system message is the agent's instructions."""
    message = record.message
    if message.role is not Role.SYSTEM:
        return message
    return message.model_copy(update={"role": Role.ASSISTANT})


class ChainedMessages(_Built):
    """Sequences one after the other."""

    __slots__ = ("_parts",)

    def __init__(self, *parts: Sequence[Message]) -> None:
        self._parts = tuple(tuple(p) if isinstance(p, list) else p for p in parts if len(p))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._parts)

    def _at(self, index: int) -> Message:
        for part in self._parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)
