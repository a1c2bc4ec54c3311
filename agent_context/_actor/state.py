"""The mutable state of a conversation: zones, versions and subscribers.

Only the actor that owns it touches it, one message at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace
from pykka import Timeout

from agent_context._actor.changes import (
    Appended,
    Change,
    Compressed,
    ConversationState,
    EditCommand,
    Inserted,
    PendingEvent,
    advance,
    plan_edit,
    to_event_seq,
)
from agent_context._actor.hidden_messages import HiddenMessages
from agent_context._actor.journal import Journal
from agent_context._actor.replay import encode_change, encode_event
from agent_context._context.message_ids import MessageIds
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import (
    StoredMessage,
    StoredMessages,
    from_message,
    with_id,
)
from agent_context._context.zones import Zones
from agent_context._runtime import Reply, SubscriberQueue
from agent_context._validation import check_callback
from agent_context.compression.executor import CompressionResult
from agent_context.errors import InvalidMessage, StoreUnavailable
from agent_context.events import ChangeEvent
from agent_context.messages import Message, MessageId, TextPart, TurnUsage, new_id
from agent_context.stores.write_check import MAX_PAYLOAD_BYTES

__all__ = [
    "ActorState",
    "TurnMessage",
    "check_total_size",
    "to_turn_messages",
    "wait_for_store",
]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_EMPTY = (TextPart(text=""),)
STORE_TIMEOUT = 30.0
"""Seconds that a store has to give a conversation, and to keep what an opening changed."""


class TurnMessage(Struct, frozen=True):
    """A message of a turn in both forms, stored and parsed, so that it is converted once."""

    record: StoredMessage
    message: Message

    def with_id(self, message_id: MessageId) -> TurnMessage:
        """The same message under another id."""
        message = self.message.model_copy(update={"id": message_id})
        return TurnMessage(with_id(self.record, message_id), message)


class ActorState:
    """Zones, their version, the sequence of events, and the subscribers.

    With a journal, what changes is kept there, and subscribers hear of it once it is.
    """

    __slots__ = (
        "_ids",
        "_reserved",
        "_subscribers",
        "conversation_id",
        "current",
        "hidden",
        "host_subscribers",
        "journal",
        "remembers_hidden",
    )

    def __init__(
        self, conversation_id: str, state: ConversationState, journal: Journal | None = None
    ) -> None:
        self.conversation_id = conversation_id
        self.current = state
        self.journal = journal
        self.hidden: HiddenMessages | None = None
        """What compressions took away; None while there is nothing."""
        self.remembers_hidden = False
        """Whether what a compression takes away is remembered."""
        self.host_subscribers: Callable[[], Sequence[SubscriberQueue[ChangeEvent]]] | None = None
        """Who hears of every change without having subscribed here."""
        self._ids = MessageIds()
        self._reserved: set[MessageId] | None = None
        """Ids of messages that turns at hand will store."""
        self._subscribers: dict[str, SubscriberQueue[ChangeEvent]] | None = None

    @property
    def zones(self) -> Zones:
        return self.current.zones

    def edit(self, command: EditCommand, key: str | None = None) -> object:
        """Carry out an edit, wholly or not at all, and return its reply.

        `key` is its idempotency key. Raises what is wrong with the command.
        """
        planned = plan_edit(command, self)
        if planned.change is not None:
            self.change(planned.change, removed=planned.removed, key=key)
        return planned.reply

    def change(
        self,
        change: Change,
        *,
        removed: Iterable[StoredMessage] | None = (),
        key: str | None = None,
    ) -> None:
        """Apply a change, journal it and announce it.

        Raises `IndexOutOfRange`, and `InvalidMessage` for one that is too large for any store.

        `removed` is what leaves the zones, whose ids are free again; None replaces them whole.
        """
        before, after = self.current, advance(self.current, change)
        if self.journal is not None:
            self.journal.add(*encode_change(change), key)
        self.current = after
        self._note_hidden(change, before.zones, after.zones)
        if removed is None:
            self._ids.forget()
        else:
            self._ids.update(removed, change.added)
        self._announce(lambda: change.to_event(before.zones, after.zones), before.version)

    def _note_hidden(self, change: Change, before: Zones, after: Zones) -> None:
        if self.hidden is None and self.remembers_hidden and isinstance(change, Compressed):
            self.hidden = HiddenMessages()
        if self.hidden is not None:
            self.hidden.note(change, before, after)

    def remember_hidden(self, wanted: bool) -> None:  # noqa: FBT001 - a setter
        """Remember from now on what compressions take away, or don't."""
        self.remembers_hidden = wanted
        if not wanted:
            self.hidden = None

    def store_turn(
        self,
        messages: Sequence[TurnMessage],
        *,
        after: MessageId | None,
        answer: bytes | None = None,
        used: TurnUsage | None = None,
        key: str | None = None,
    ) -> None:
        """Store a turn's messages right behind `after`, the last message of its request.

        It stands at the end if that one is gone, and in front of all if the request held none.
        What was appended while the turn ran stays behind it: the model has not seen it yet.
        `answer` is what the vendor said beside the last message, `used` what the turn used, `key`
        its idempotency key.
        """
        incremental = self.zones.incremental
        index = _index_after(incremental, after)
        at_end = index == len(incremental)
        for offset, said in enumerate(messages):
            last = offset == len(messages) - 1
            beside, total = (answer, used) if last else (None, None)
            change = (
                Appended(said.record, beside, said.message, total)
                if at_end
                else Inserted(index + offset, said.record, beside, said.message, total)
            )
            self.change(change, key=key if last else None)

    def zones_before(self, after: MessageId | None) -> Zones:
        """The zones without what was added behind the message `after`."""
        zones = self.zones
        end = _index_after(zones.incremental, after)
        return zones if end == len(zones.incremental) else zones.truncate(end)

    def apply_compression(self, result: CompressionResult) -> bool:
        """Put a compression's result in place; False if what it was made from has changed."""
        before = self.zones
        after = result.apply_to(before)
        if after is None:
            return False
        left = {record.id for record in (*after.compressed, *after.incremental)}
        held = (*before.compressed, *before.incremental)
        removed = tuple(record for record in held if record.id not in left)
        self.change(Compressed.between(before, after, result.summary), removed=removed)
        return True

    def announce(self, event: Callable[[], PendingEvent]) -> None:
        """Announce something that changed no zone."""
        if self.journal is not None:
            self.journal.add(*encode_event(event()))
        self.current = replace(self.current, seq=self.current.seq + 1)
        self._announce(event, self.current.version)

    def _announce(self, event: Callable[[], PendingEvent], before: int) -> None:
        subscribers = self._live_subscribers()
        if not subscribers:
            return
        made = event()(
            conversation_id=self.conversation_id,
            seq=to_event_seq(self.current.seq),
            version_before=before,
            version_after=self.current.version,
        )

        def deliver(error: BaseException | None) -> None:
            if error is None:
                for subscriber in subscribers:
                    subscriber.put(made)

        self.on_committed(deliver)

    def on_committed(self, then: Callable[[BaseException | None], object]) -> None:
        """Call `then` once all changes so far are committed, or with the error if they can't be."""
        if self.journal is None:
            then(None)
        else:
            self.journal.on_committed(then)

    def commit(self) -> Reply[None] | None:
        """Commit every change so far. None if nothing is pending."""
        journal = self.journal
        if journal is None:
            return None
        if journal.needs_snapshot():
            journal.snapshot(self.current)
        return journal.commit()

    def commit_now(self) -> None:
        """Commit and wait. Raises `StoreError`, after which ownership is given up."""
        kept = self.commit()
        if kept is None:
            return
        try:
            wait_for_store(kept)
        except BaseException:
            self.release()
            raise

    def release(self) -> Reply[None]:
        """Give up ownership; settles when others can claim the conversation."""
        if self.journal is not None:
            return self.journal.release(self.current)
        released: Reply[None] = Reply()
        released.set(None)
        return released

    def replace_with(self, other: ActorState) -> None:
        """Adopt the state of `other`, which was read from the store; subscribers stay."""
        self.current, self.journal = other.current, other.journal
        self.hidden = other.hidden if self.remembers_hidden else None
        self._ids.forget()

    def subscribe(self, callback: Callable[[ChangeEvent], object]) -> str:
        """Call `callback` with every later event; returns the token to unsubscribe with."""
        check_callback("callback", callback)
        if self._subscribers is None:
            self._subscribers = {}
        token = new_id()
        self._subscribers[token] = SubscriberQueue(callback, key=self.conversation_id)
        return token

    def unsubscribe(self, token: str) -> bool:
        """Remove a subscriber; False if there is none with this token."""
        delivery = (self._subscribers or {}).pop(token, None)
        if delivery is None:
            return False
        delivery.close()
        return True

    def flush_marks(self) -> list[Reply[None]]:
        """One future per subscriber, settled when it has had every event so far."""
        return [delivery.mark() for delivery in self._live_subscribers()]

    def count_subscribers(self) -> int:
        """The number of subscribers that are still active."""
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

    def to_records(self, messages: object) -> tuple[StoredMessage, ...]:
        """The messages in their stored form, under ids that the conversation doesn't hold.

        Raises `InvalidMessage`.
        """
        if isinstance(messages, StoredMessages):
            return self._under_free_ids(messages.records)
        return tuple(said.record for said in self.with_unique_ids(to_turn_messages(messages)))

    def _under_free_ids(self, records: Iterable[StoredMessage]) -> tuple[StoredMessage, ...]:
        unique: dict[MessageId, StoredMessage] = {}
        for record in records:
            if record.id in unique or self._holds(record.id):
                record = with_id(record, new_id())  # noqa: PLW2901 - the same message, renamed
            unique[record.id] = record
        return tuple(unique.values())

    def with_unique_ids(self, messages: Iterable[TurnMessage]) -> tuple[TurnMessage, ...]:
        """These messages, under new ids where theirs are taken."""
        unique: list[TurnMessage] = []
        ids: set[MessageId] = set()
        for said in messages:
            if said.record.id in ids or self._holds(said.record.id):
                said = said.with_id(new_id())  # noqa: PLW2901 - the same message, renamed
            ids.add(said.record.id)
            unique.append(said)
        return tuple(unique)

    def reserve_ids(self, messages: Iterable[TurnMessage]) -> None:
        """Reserve ids until a turn has stored its messages, or ended without."""
        self._reserved = (self._reserved or set()) | {said.record.id for said in messages}

    def release_ids(self, messages: Iterable[TurnMessage]) -> None:
        """Release the ids that `reserve_ids` reserved."""
        if self._reserved:
            self._reserved = self._reserved - {said.record.id for said in messages} or None

    def _holds(self, message_id: MessageId) -> bool:
        if self._reserved and message_id in self._reserved:
            return True
        return self._ids.holds(message_id, self.zones)


def wait_for_store(answer: Reply[T]) -> T:
    """Wait for a store's reply. Raises `StoreError`, also on timeout."""
    try:
        return answer.get(timeout=STORE_TIMEOUT)
    except Timeout:
        raise StoreUnavailable(f"the store has not answered in {STORE_TIMEOUT} seconds") from None


def to_turn_messages(messages: object) -> tuple[TurnMessage, ...]:
    """These messages in both forms, whatever their ids. Raises `InvalidMessage`."""
    if isinstance(messages, str | Message) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"messages: a list of Message, not {type(messages).__name__}")
    return tuple(map(_to_turn_message, cast("Iterable[object]", messages)))


def check_total_size(messages: Iterable[TurnMessage]) -> None:
    """Refuse what is too large to be sent at once. Raises `InvalidMessage`."""
    size = sum(len(said.record.body) for said in messages)
    if size > MAX_PAYLOAD_BYTES:
        raise InvalidMessage(
            f"messages: {size:,} bytes are too many at once, {MAX_PAYLOAD_BYTES:,} are allowed"
        )


def _to_turn_message(item: object) -> TurnMessage:
    if not isinstance(item, Message):
        raise InvalidMessage(f"a message is a Message, not {type(item).__name__}")
    record = from_message(item)
    # One empty text is stored as none: events tell what is stored.
    return TurnMessage(record, item if item.parts != _EMPTY else record.message)


def _index_after(incremental: PersistentVector, after: MessageId | None) -> int:
    """The index behind the message `after`; the length if it is gone, 0 for None."""
    if after is None:
        return 0
    index = len(incremental)
    for record in reversed(incremental):
        if record.id == after:
            return index
        index -= 1
    return len(incremental)
