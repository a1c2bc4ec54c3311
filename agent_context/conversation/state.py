"""What changes in a conversation: its zones, and who is told.

Only the actor that owns it touches it, one message at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import TypeVar, cast

from agent_context.errors import InvalidMessage, InvalidOptions
from agent_context.events import ChangeEvent
from agent_context.messages import Message, MessageId, new_id
from agent_context.records import Record, record_of, with_id
from agent_context.runtime import Delivery, Reply
from agent_context.zones import Zones

__all__ = ["State", "at_rest", "views"]

logger = logging.getLogger(__name__)

_id = attrgetter("id")

_FEW = 64
"""Up to this many messages an id is looked for one by one: a set would take more room."""

E = TypeVar("E", bound=ChangeEvent)


class State:
    """Zones, their version, the sequence of events, and the subscribers."""

    __slots__ = (
        "_ids", "_subscribers", "compressions", "conversation_id", "seq", "version", "zones",
    )  # fmt: skip

    def __init__(self, conversation_id: str, zones: Zones) -> None:
        self.conversation_id = conversation_id
        self.zones = zones
        self.version = 0
        self.seq = 0
        self.compressions = 0
        self._ids: set[MessageId] | None = None
        self._subscribers: dict[str, Delivery[ChangeEvent]] | None = None

    def change(
        self, zones: Zones, event: Callable[[], partial[E]], *, gone: Iterable[Record] = ()
    ) -> None:
        """Replace the zones and announce it; `event` is only asked if somebody listens.

        `gone` is what left the zones: its ids are free again.
        """
        self.zones = zones
        if self._ids is not None:
            self._ids.difference_update(record.id for record in gone)
        self.version += 1
        self._announce(event, self.version - 1)

    def announce(self, event: Callable[[], partial[E]]) -> None:
        """Announce something that changed no zone."""
        self._announce(event, self.version)

    def _announce(self, event: Callable[[], partial[E]], before: int) -> None:
        self.seq += 1
        if not self._subscribers:
            return
        made = event()(
            conversation_id=self.conversation_id,
            seq=self.seq,
            version_before=before,
            version_after=self.version,
        )
        for token, delivery in list(self._subscribers.items()):
            delivery.put(made)
            if delivery.closed:
                del self._subscribers[token]

    def subscribe(self, callback: Callable[[ChangeEvent], object]) -> str:
        """Call `callback` with every later change; returns the token that ends it."""
        if not callable(callback):
            raise InvalidOptions(f"a subscriber is a callable, not {type(callback).__name__}")
        if self._subscribers is None:
            self._subscribers = {}
        token = new_id()
        self._subscribers[token] = Delivery(callback, key=self.conversation_id)
        return token

    def unsubscribe(self, token: str) -> bool:
        """Whether there was such a subscriber; it gets nothing more."""
        delivery = (self._subscribers or {}).pop(token, None)
        if delivery is None:
            return False
        delivery.close()
        return True

    def deliveries(self) -> list[Reply[None]]:
        """What is settled, each by itself, when the subscribers have had every event so far."""
        return [delivery.mark() for delivery in (self._subscribers or {}).values()]

    def at_rest(self, message: object) -> Record:
        """A record that may enter the zones: under an id that none of them has."""
        return self.at_rest_all((message,))[0]

    def at_rest_all(self, messages: object) -> tuple[Record, ...]:
        """Records that may enter the zones together. Raises `InvalidMessage`."""
        return self.fresh(at_rest(messages))

    def fresh(self, records: Iterable[Record]) -> tuple[Record, ...]:
        """These records, under new ids where theirs are taken."""
        entering: list[Record] = []
        new: set[MessageId] = set()
        for record in records:
            if record.id in new or self._holds(record.id):
                record = with_id(record, new_id())  # noqa: PLW2901 - the same message, renamed
            new.add(record.id)
            entering.append(record)
        if self._ids is not None:
            self._ids |= new
        return tuple(entering)

    def forget_ids(self) -> None:
        """The zones were replaced as a whole."""
        self._ids = None

    def _holds(self, message_id: MessageId) -> bool:
        if len(self.zones) <= _FEW:
            self._ids = None
            return message_id in map(_id, self.zones)
        if self._ids is None:
            self._ids = {record.id for record in self.zones}
        return message_id in self._ids


def at_rest(messages: object) -> tuple[Record, ...]:
    """These messages as records, whatever their ids. Raises `InvalidMessage`."""
    if isinstance(messages, str | Message) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"messages: a list of Message, not {type(messages).__name__}")
    return tuple(_record(item) for item in cast("Iterable[object]", messages))


def _record(item: object) -> Record:
    if not isinstance(item, Message):
        raise InvalidMessage(f"a message is a Message, not {type(item).__name__}")
    return record_of(item)


def views(records: Iterable[Record]) -> tuple[Message, ...]:
    """The messages as values."""
    return tuple(record.message for record in records)
