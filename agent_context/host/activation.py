"""Which conversations of a host are active; how one is activated, and how one is parked."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Final

import pykka

from agent_context._actor import AgentContext
from agent_context._actor.changes import ConversationState
from agent_context._actor.config import ActorConfig, ConversationConfig
from agent_context._actor.lifecycle import HostPort, Passivate
from agent_context._actor.recovery import open_conversation
from agent_context._actor.state import ActorState
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.zones import Zones
from agent_context._runtime import Deferred, Failure, Reply, SubscriberQueue, io_loop, post
from agent_context._runtime.fork_safety import ProcessToken, forked_process_error
from agent_context._validation import check_type
from agent_context.errors import (
    AskTimeout,
    ConversationClosed,
    OwnedByAnotherProcess,
    UnknownConversation,
    UsageError,
)
from agent_context.events import ChangeEvent
from agent_context.host.hosted_ref import ActivationWaiter, to_hosted
from agent_context.host.slot import PendingDelivery, Slot
from agent_context.ref import ContextRef, Shutdown
from agent_context.stores.store import ConversationInfo, Store
from agent_context.stores.writer import StoreExecutor

__all__ = ["ActivationRegistry", "ActivationRequest"]

_SPARE: Final = 50
"""One in this many slots is freed ahead of need: finding the longest unused scans them all."""


class ActivationRegistry:
    """The slots, by id."""

    def __init__(
        self, store: Store, setup_of: Callable[[str], ConversationConfig], *, limit: int
    ) -> None:
        self.access = StoreExecutor.for_store(store)
        self.draining = False
        self.subscribers: tuple[SubscriberQueue[ChangeEvent], ...] = ()
        self._setup_of = setup_of
        self._limit = limit
        self._home = ProcessToken.current
        self._changed = Condition()
        self._slots: dict[str, Slot] = {}
        self._leaving = 0
        self._last: tuple[ConversationConfig, ActorConfig] | None = None
        self._remembered_configs: dict[str, ActorConfig] = {}
        """Settings that a conversation was told or has from its parent: the store has none."""

    def discard(self, conversation_id: str) -> None:
        """Forget a deleted conversation."""
        self._remembered_configs.pop(conversation_id, None)

    def active_slots(self) -> list[Slot]:
        """The slots of active conversations."""
        with self._changed:
            return [slot for slot in self._slots.values() if slot.is_active]

    def draining_error(self) -> ConversationClosed:
        return ConversationClosed("the host is draining, or was closed: ask the one that follows")

    def check_home(self) -> None:
        """Raises `ConversationClosed` in a forked child: threads and locks are the parent's."""
        if self._home is not ProcessToken.current:
            raise forked_process_error()

    def deliver(self, conversation_id: str, call: PendingDelivery) -> None:
        """Make the call now, or when the conversation is awake: this wakes it.

        Raises `ConversationClosed`.
        """
        self.check_home()
        with self._changed:
            slot, new = self._slots.get(conversation_id), None
            if slot is None:
                slot = new = self._add_slot(conversation_id)
            elif slot.released:
                slot = self._add_successor(slot)
            if slot.pending is not None:
                slot.pending.append(call)
        if new is not None:
            self._start_activation(new)
        elif slot.pending is None:
            self._make_delivery(slot, call)

    def deliver_if_active(self, conversation_id: str, call: PendingDelivery) -> None:
        """The same, but only if the conversation is awake or being woken."""
        self.check_home()
        if conversation_id in self._slots:
            self.deliver(conversation_id, call)

    def get_active(self, conversation_id: str, timeout: float) -> ContextRef | None:
        """The conversation if it is active or being activated. Raises why it can't be."""
        self.check_home()
        arrival = ActivationWaiter(self)
        with self._changed:
            slot = self._slots.get(conversation_id)
            if slot is None or slot.released:
                return None
            if slot.pending is None:
                return slot.ref
            slot.pending.append(arrival)
        try:
            arrival.reply.get(timeout=timeout)
        except pykka.Timeout:
            raise AskTimeout(f"{conversation_id} was not awake within {timeout} seconds") from None
        return slot.ref

    def _add_slot(self, conversation_id: str) -> Slot:
        if self.draining:
            raise self.draining_error()
        slot = self._slots[conversation_id] = Slot(self, conversation_id)
        return slot

    def _add_successor(self, slot: Slot) -> Slot:
        """A new slot in the place of one that was left; it is opened when the store knows."""
        following = self._add_slot(slot.id)
        slot.successor = following
        return following

    def _make_delivery(self, slot: Slot, call: PendingDelivery) -> None:
        slot.last_used = time.monotonic()
        if slot.ref is None or call.deliver(slot.ref):
            return
        with self._changed:
            # It has ended, and may not have said so yet.
            if self._slots.get(slot.id) is slot:
                slot.released = True
        try:
            self.deliver(slot.id, call)
        except ConversationClosed as error:
            call.fail(error)

    def _start_activation(self, slot: Slot) -> None:
        opening = self.access.read(self._load_and_launch, slot)
        opening.add_done_callback(lambda _: self._finish_activation(slot, opening))

    def _load_and_launch(self, slot: Slot) -> ContextRef:
        setup, usual = self._configure(slot)
        immutable = ActorState(slot.id, ConversationState(Zones())).to_records(setup.immutable)
        state = open_conversation(
            self.access, slot.id, Zones(immutable=PersistentVector.of(immutable))
        )
        return AgentContext.launch(self._remembered_configs.get(slot.id, usual), state, host=slot)

    def _configure(self, slot: Slot) -> tuple[ConversationConfig, ActorConfig]:
        setup, last = check_type("setup", self._setup_of(slot.id), ConversationConfig), self._last
        if last is None or last[0] is not setup:
            # Mostly it is the same for all conversations.
            last = self._last = setup, setup.actor_config()
        slot.default_config = last[1]
        if setup.on_change is not None:
            slot.on_change = SubscriberQueue(setup.on_change, key=slot.id)
        return last

    def _finish_activation(self, slot: Slot, opening: Reply[ContextRef]) -> None:
        if (error := opening.error()) is not None:
            self._fail_slot(slot, error)
            return
        slot.ref = opening.get()
        self._settle(slot)

    def _settle(self, slot: Slot) -> None:
        """Hand out an activated conversation."""
        # First: whoever waits for the conversation finds no more awake than may be.
        self.evict_idle()
        self._deliver_pending(slot)
        if self.draining:
            self.drain(slot)

    def _deliver_pending(self, slot: Slot) -> None:
        """Make the calls that wait, in order; those that come meanwhile wait behind them."""
        while True:
            with self._changed:
                calls = slot.pending
                slot.pending = [] if calls else None
                if not calls:
                    self._changed.notify_all()
                    return
            for call in calls:
                self._make_delivery(slot, call)

    def _fail_slot(self, slot: Slot, error: BaseException) -> None:
        with self._changed:
            if self._slots.get(slot.id) is slot:
                del self._slots[slot.id]
            calls, slot.pending = slot.pending, None
            slot.released = True
            self._changed.notify_all()
        for call in calls or ():
            call.fail(error)

    def on_stopped(
        self,
        slot: Slot,
        settings: ActorConfig,
        unread: Sequence[PendingDelivery],
        released: Reply[None],
    ) -> None:
        """A conversation has ended; once `released` settles, others may claim it."""
        with self._changed:
            slot.released = True
            if settings is not slot.default_config:
                self._remembered_configs[slot.id] = settings
            if unread and slot.successor is None and not self.draining:
                self._add_successor(slot)
            if slot.successor is not None and slot.successor.pending is not None:
                # In front: whoever asked these may have asked more since.
                slot.successor.pending[:0], unread = unread, ()
        for call in unread:
            call.fail(self.draining_error())
        released.add_done_callback(lambda _: self._free_slot(slot))

    def _free_slot(self, slot: Slot) -> None:
        with self._changed:
            self._leaving -= slot.passivation_requested
            slot.passivation_requested = False
            following = slot.successor
            if self._slots.get(slot.id) is slot:
                del self._slots[slot.id]
            self._changed.notify_all()
        if following is not None:
            self._start_activation(following)

    def on_passivation_refused(self, slot: Slot) -> None:
        """A conversation that was asked to park has work to do."""
        with self._changed:
            self._leaving -= slot.passivation_requested
            slot.passivation_requested = False
            self._changed.notify_all()
        if not slot.draining:
            slot.last_used = time.monotonic()

    def register_fork(
        self, conversation_id: str, launch: Callable[[HostPort], ContextRef]
    ) -> ContextRef:
        """Give a fork a slot. Raises `ConversationClosed`, and `UsageError` if its id is taken."""
        with self._changed:
            if conversation_id in self._slots:
                raise UsageError(f"id: there is a conversation {conversation_id!r} already")
            slot = self._add_slot(conversation_id)
        try:
            self._configure(slot)
            slot.ref = launch(slot)
        except BaseException as error:
            self._fail_slot(slot, error)
            raise
        self._settle(slot)
        return to_hosted(slot.ref, self)

    def evict_idle(self) -> None:
        """Park the longest unused conversations while more are active than `live`."""
        with self._changed:
            over = len(self._slots) - self._leaving - self._limit
            if over <= 0:
                return
            asleep_soon = (
                slot
                for slot in self._slots.values()
                if slot.is_active and not slot.passivation_requested
            )
            many = over + self._limit // _SPARE
            chosen = heapq.nsmallest(many, asleep_soon, key=lambda slot: slot.last_used)
            self._request_passivation(chosen)
        for slot in chosen:
            post(slot.actor_ref, Passivate(slot.last_used))

    def passivate_idle(self, unused_since: float, timeout: float) -> bool:
        """Park conversations unused since then; False if one hasn't answered in time.

        Raises `ConversationClosed`.
        """
        self.check_home()
        end = time.monotonic() + timeout
        with self._changed:
            settled = timeout <= 0 or self._changed.wait_for(self._is_settled, timeout)
            chosen = [
                slot
                for slot in self._slots.values()
                if slot.is_active
                and not slot.passivation_requested
                and slot.last_used <= unused_since
            ]
            self._request_passivation(chosen)
        for slot in chosen:
            post(slot.actor_ref, Passivate(unused_since))
        return settled and all(self._wait_for_answer(slot, end) for slot in chosen)

    def _is_settled(self) -> bool:
        """Whether no conversation has just woken: who asked for it may have it already."""
        return not any(slot.is_waking for slot in self._slots.values())

    def _wait_for_answer(self, slot: Slot, end: float) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: not slot.passivation_requested, end - time.monotonic()
            )

    def _request_passivation(self, slots: list[Slot]) -> None:
        for slot in slots:
            slot.passivation_requested = True
        self._leaving += len(slots)

    def drain(self, slot: Slot) -> None:
        """Stop a conversation as soon as nothing runs in it."""
        slot.draining = True
        post(slot.actor_ref, Passivate())

    def stop(self, slot: Slot) -> None:
        """Stop a conversation now."""
        post(slot.actor_ref, Shutdown())

    def start_draining(self) -> None:
        with self._changed:
            self.draining = True

    def wait_until_empty(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._slots, timeout)


_PAUSE: Final = 0.2
"""Seconds between two looks at a conversation that another process owns."""


class ActivationRequest:
    """Activates one conversation; concurrent requests share the work."""

    def __init__(self, registry: ActivationRegistry, conversation_id: str, patience: float) -> None:
        self._registry = registry
        self._id = conversation_id
        self._end = time.monotonic() + patience
        self.result: Reply[ContextRef] = Reply()

    def begin_if_known(self) -> None:
        """Activate it if it exists."""
        reading = self._registry.access.read(self._registry.access.store.info, self._id)
        reading.add_done_callback(self._on_looked_up)

    def begin(self) -> None:
        """Activate it, or create it."""
        arrival = ActivationWaiter(self._registry)
        arrival.reply.add_done_callback(self._on_activated)
        try:
            self._registry.deliver(self._id, arrival)
        except ConversationClosed as error:
            self.result.set(Failure(error))

    def _on_looked_up(self, reading: Reply[ConversationInfo | None]) -> None:
        if (error := reading.error()) is not None:
            self.result.set(Failure(error))
        elif reading.get() is None:
            unknown = UnknownConversation(f"the store has no conversation {self._id}")
            self.result.set(Failure(unknown))
        else:
            self.begin()

    def _on_activated(self, arrival: Reply[ContextRef]) -> None:
        owned = isinstance(arrival.error(), OwnedByAnotherProcess)
        if owned and time.monotonic() < self._end:
            io_loop().call_later(_PAUSE, self.begin)
        else:
            self.result.set(Deferred(arrival))
