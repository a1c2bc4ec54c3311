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

from agent_context.conversation.changes import Announced, Change, announced
from agent_context.conversation.journal import Journal
from agent_context.conversation.log import Moment, followed, noted, written
from agent_context.errors import InvalidMessage, InvalidOptions, StoreUnavailable
from agent_context.events import ChangeEvent
from agent_context.messages import Message, MessageId, new_id
from agent_context.records import Record, record_of, with_id
from agent_context.runtime import Delivery, Reply
from agent_context.zones import Zones

__all__ = ["State", "at_rest", "in_time"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_id = attrgetter("id")

OPENING = 30.0
"""Seconds that a store has to give a conversation, and to keep what an opening changed."""

_FEW = 64
"""Up to this many messages an id is looked for one by one: a set would take more room."""


class State:
    """Zones, their version, the sequence of events, and the subscribers.

    With a journal, what changes is kept there, and subscribers hear of it once it is.
    """

    __slots__ = ("_ids", "_subscribers", "audience", "conversation_id", "journal", "moment")

    def __init__(
        self, conversation_id: str, moment: Moment, journal: Journal | None = None
    ) -> None:
        self.conversation_id = conversation_id
        self.moment = moment
        self.journal = journal
        self.audience: Callable[[], Sequence[Delivery[ChangeEvent]]] | None = None
        """Who hears of every change without having subscribed here."""
        self._ids: set[MessageId] | None = None
        self._subscribers: dict[str, Delivery[ChangeEvent]] | None = None

    @property
    def zones(self) -> Zones:
        return self.moment.zones

    def change(
        self, change: Change, *, gone: Iterable[Record] = (), key: str | None = None
    ) -> None:
        """Carry out a change and announce it. Raises `IndexOutOfRange`, and nothing happens.

        `gone` is what leaves the zones: its ids are free again. `key` is the idempotency key.
        """
        before, moment = self.moment, followed(self.moment, change)
        if self.journal is not None:
            self.journal.add(*written(change), key)
        self.moment = moment
        if self._ids is not None:
            self._ids.difference_update(record.id for record in gone)
        zones = self.moment.zones
        self._announce(lambda: announced(change, before.zones, zones), before.version)

    def announce(self, event: Callable[[], Announced]) -> None:
        """Announce something that changed no zone."""
        if self.journal is not None:
            self.journal.add(*noted(event()))
        self.moment = replace(self.moment, seq=self.moment.seq + 1)
        self._announce(event, self.moment.version)

    def _announce(self, event: Callable[[], Announced], before: int) -> None:
        listening = self._listening()
        if not listening:
            return
        made = event()(
            conversation_id=self.conversation_id,
            seq=self.moment.seq,
            version_before=before,
            version_after=self.moment.version,
        )

        def deliver(error: BaseException | None) -> None:
            if error is None:
                for delivery in listening:
                    delivery.put(made)

        self.when_kept(deliver)

    def when_kept(self, then: Callable[[BaseException | None], object]) -> None:
        """Call `then` when all changes so far are kept, or with the error if they can't be."""
        if self.journal is None:
            then(None)
        else:
            self.journal.when_kept(then)

    def commit(self) -> Reply[None] | None:
        """Have everything kept that changed. None if it is, or need not be."""
        journal = self.journal
        if journal is None:
            return None
        if journal.wants_snapshot():
            journal.snapshot(self.moment)
        return journal.commit()

    def commit_now(self) -> None:
        """The same, and wait for it. Raises `StoreError`, and the conversation is let go."""
        kept = self.commit()
        if kept is None:
            return
        try:
            in_time(kept)
        except BaseException:
            self.release()
            raise

    def release(self) -> Reply[None]:
        """Let others have the conversation; settled when they can."""
        if self.journal is not None:
            return self.journal.release(self.moment)
        released: Reply[None] = Reply()
        released.set(None)
        return released

    def become(self, other: State) -> None:
        """Take over what `other` knows, which was read from the store; subscribers stay."""
        self.moment, self.journal, self._ids = other.moment, other.journal, None

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
        return [delivery.mark() for delivery in self._listening()]

    def subscribers(self) -> int:
        """How many have subscribed here and were not dropped since."""
        return sum(not delivery.closed for delivery in (self._subscribers or {}).values())

    def _listening(self) -> tuple[Delivery[ChangeEvent], ...]:
        if not self._subscribers:
            return () if self.audience is None else tuple(self.audience())
        for token, delivery in list(self._subscribers.items()):
            if delivery.closed:
                del self._subscribers[token]
        return (*self._subscribers.values(), *(self.audience() if self.audience else ()))

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


def in_time(answer: Reply[T]) -> T:
    """What a store answers. Raises `StoreError`, also if that takes too long."""
    try:
        return answer.get(timeout=OPENING)
    except Timeout:
        raise StoreUnavailable(f"the store has not answered in {OPENING} seconds") from None


def at_rest(messages: object) -> tuple[Record, ...]:
    """These messages as records, whatever their ids. Raises `InvalidMessage`."""
    if isinstance(messages, str | Message) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"messages: a list of Message, not {type(messages).__name__}")
    return tuple(_record(item) for item in cast("Iterable[object]", messages))


def _record(item: object) -> Record:
    if not isinstance(item, Message):
        raise InvalidMessage(f"a message is a Message, not {type(item).__name__}")
    return record_of(item)
