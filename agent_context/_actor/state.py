"""What changes in a conversation: its zones, and who is told.

Only the actor that owns it touches it, one message at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeVar, cast

from msgspec.structs import replace
from pykka import Timeout

from agent_context._actor.changes import Change, PendingEvent, to_event
from agent_context._actor.journal import Journal
from agent_context._actor.replay import ConversationState, advance, encode_change, encode_event
from agent_context._context.stored_message import StoredMessage, from_message, with_id
from agent_context._context.zones import Zones
from agent_context._runtime import Reply, SubscriberQueue
from agent_context.errors import InvalidMessage, InvalidOptions, StoreUnavailable
from agent_context.events import ChangeEvent
from agent_context.messages import Message, MessageId, new_id

__all__ = ["ActorState", "to_records", "wait_for_store"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_id = attrgetter("id")

STORE_TIMEOUT = 30.0
"""Seconds that a store has to give a conversation, and to keep what an opening changed."""

_FEW = 64
"""Up to this many messages an id is looked for one by one: a set would take more room."""


class ActorState:
    """Zones, their version, the sequence of events, and the subscribers.

    With a journal, what changes is kept there, and subscribers hear of it once it is.
    """

    __slots__ = (
        "_ids",
        "_subscribers",
        "conversation_id",
        "current",
        "host_subscribers",
        "journal",
    )

    def __init__(
        self, conversation_id: str, moment: ConversationState, journal: Journal | None = None
    ) -> None:
        self.conversation_id = conversation_id
        self.current = moment
        self.journal = journal
        self.host_subscribers: Callable[[], Sequence[SubscriberQueue[ChangeEvent]]] | None = None
        """Who hears of every change without having subscribed here."""
        self._ids: set[MessageId] | None = None
        self._subscribers: dict[str, SubscriberQueue[ChangeEvent]] | None = None

    @property
    def zones(self) -> Zones:
        return self.current.zones

    def change(
        self, change: Change, *, gone: Iterable[StoredMessage] = (), key: str | None = None
    ) -> None:
        """Carry out a change and announce it. Raises `IndexOutOfRange`, and nothing happens.

        `gone` is what leaves the zones: its ids are free again. `key` is the idempotency key.
        """
        before, moment = self.current, advance(self.current, change)
        if self.journal is not None:
            self.journal.add(*encode_change(change), key)
        self.current = moment
        if self._ids is not None:
            self._ids.difference_update(record.id for record in gone)
        zones = self.current.zones
        self._announce(lambda: to_event(change, before.zones, zones), before.version)

    def announce(self, event: Callable[[], PendingEvent]) -> None:
        """Announce something that changed no zone."""
        if self.journal is not None:
            self.journal.add(*encode_event(event()))
        self.current = replace(self.current, seq=self.current.seq + 1)
        self._announce(event, self.current.version)

    def _announce(self, event: Callable[[], PendingEvent], before: int) -> None:
        listening = self._live_subscribers()
        if not listening:
            return
        made = event()(
            conversation_id=self.conversation_id,
            seq=self.current.seq,
            version_before=before,
            version_after=self.current.version,
        )

        def deliver(error: BaseException | None) -> None:
            if error is None:
                for delivery in listening:
                    delivery.put(made)

        self.on_committed(deliver)

    def on_committed(self, then: Callable[[BaseException | None], object]) -> None:
        """Call `then` when all changes so far are kept, or with the error if they can't be."""
        if self.journal is None:
            then(None)
        else:
            self.journal.on_committed(then)

    def commit(self) -> Reply[None] | None:
        """Have everything kept that changed. None if it is, or need not be."""
        journal = self.journal
        if journal is None:
            return None
        if journal.needs_snapshot():
            journal.snapshot(self.current)
        return journal.commit()

    def commit_now(self) -> None:
        """The same, and wait for it. Raises `StoreError`, and the conversation is let go."""
        kept = self.commit()
        if kept is None:
            return
        try:
            wait_for_store(kept)
        except BaseException:
            self.release()
            raise

    def release(self) -> Reply[None]:
        """Let others have the conversation; settled when they can."""
        if self.journal is not None:
            return self.journal.release(self.current)
        released: Reply[None] = Reply()
        released.set(None)
        return released

    def replace_with(self, other: ActorState) -> None:
        """Take over what `other` knows, which was read from the store; subscribers stay."""
        self.current, self.journal, self._ids = other.current, other.journal, None

    def subscribe(self, callback: Callable[[ChangeEvent], object]) -> str:
        """Call `callback` with every later change; returns the token that ends it."""
        if not callable(callback):
            raise InvalidOptions(f"a subscriber is a callable, not {type(callback).__name__}")
        if self._subscribers is None:
            self._subscribers = {}
        token = new_id()
        self._subscribers[token] = SubscriberQueue(callback, key=self.conversation_id)
        return token

    def unsubscribe(self, token: str) -> bool:
        """Whether there was such a subscriber; it gets nothing more."""
        delivery = (self._subscribers or {}).pop(token, None)
        if delivery is None:
            return False
        delivery.close()
        return True

    def flush_marks(self) -> list[Reply[None]]:
        """What is settled, each by itself, when the subscribers have had every event so far."""
        return [delivery.mark() for delivery in self._live_subscribers()]

    def count_subscribers(self) -> int:
        """How many have subscribed here and were not dropped since."""
        return sum(not delivery.closed for delivery in (self._subscribers or {}).values())

    def _live_subscribers(self) -> tuple[SubscriberQueue[ChangeEvent], ...]:
        if not self._subscribers:
            return () if self.host_subscribers is None else tuple(self.host_subscribers())
        for token, delivery in list(self._subscribers.items()):
            if delivery.closed:
                del self._subscribers[token]
        return (
            *self._subscribers.values(),
            *(self.host_subscribers() if self.host_subscribers else ()),
        )

    def to_record(self, message: object) -> StoredMessage:
        """A record that may enter the zones: under an id that none of them has."""
        return self.to_records((message,))[0]

    def to_records(self, messages: object) -> tuple[StoredMessage, ...]:
        """Records that may enter the zones together. Raises `InvalidMessage`."""
        return self.with_unique_ids(to_records(messages))

    def with_unique_ids(self, records: Iterable[StoredMessage]) -> tuple[StoredMessage, ...]:
        """These records, under new ids where theirs are taken."""
        entering: list[StoredMessage] = []
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


def wait_for_store(answer: Reply[T]) -> T:
    """What a store answers. Raises `StoreError`, also if that takes too long."""
    try:
        return answer.get(timeout=STORE_TIMEOUT)
    except Timeout:
        raise StoreUnavailable(f"the store has not answered in {STORE_TIMEOUT} seconds") from None


def to_records(messages: object) -> tuple[StoredMessage, ...]:
    """These messages as records, whatever their ids. Raises `InvalidMessage`."""
    if isinstance(messages, str | Message) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"messages: a list of Message, not {type(messages).__name__}")
    return tuple(_record(item) for item in cast("Iterable[object]", messages))


def _record(item: object) -> StoredMessage:
    if not isinstance(item, Message):
        raise InvalidMessage(f"a message is a Message, not {type(item).__name__}")
    return from_message(item)
