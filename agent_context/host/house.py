"""Who is awake in a host: seats are taken, kept in order, and freed again.

A conversation has one seat at most. What is said to it while it is being activated waits at the
seat, in order; when it has ended, what comes next waits at the seat that follows.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from threading import Condition
from typing import Final

import pykka

from agent_context.checks import checked
from agent_context.conversation import AgentContext
from agent_context.conversation.log import Moment
from agent_context.conversation.opening import opened
from agent_context.conversation.seat import Passivate, Seat
from agent_context.conversation.settings import Settings, Setup
from agent_context.conversation.state import State
from agent_context.errors import AskTimeout, ConversationClosed
from agent_context.events import ChangeEvent
from agent_context.host.refs import Arrival, HostedRef
from agent_context.host.seats import Call, HostSeat
from agent_context.ref import Closing, ContextRef
from agent_context.runtime import Delivery, Reply, post
from agent_context.runtime.process import Process, closed_by_fork
from agent_context.stores.access import Access
from agent_context.stores.store import Store
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["House"]

_SPARE: Final = 50
"""One in so many seats is freed in advance: finding the longest unused looks at all of them."""


class House:
    """The seats, by id."""

    def __init__(self, store: Store, setup_of: Callable[[str], Setup], *, limit: int) -> None:
        self.access = Access.of(store)
        self.draining = False
        self.listeners: tuple[Delivery[ChangeEvent], ...] = ()
        self._setup_of = setup_of
        self._limit = limit
        self._home = Process.current
        self._changed = Condition()
        self._seats: dict[str, HostSeat] = {}
        self._leaving = 0
        self._last: tuple[Setup, Settings] | None = None
        self._kept: dict[str, Settings] = {}
        """Settings that a conversation was told or has from its parent: the store has none."""

    def forget(self, conversation_id: str) -> None:
        """It was deleted."""
        self._kept.pop(conversation_id, None)

    def live(self) -> list[HostSeat]:
        """The seats of those who are awake."""
        with self._changed:
            return [seat for seat in self._seats.values() if seat.live]

    def closed(self) -> ConversationClosed:
        return ConversationClosed("the host is draining, or was closed: ask the one that follows")

    def check_home(self) -> None:
        """Raises `ConversationClosed` in a forked child: threads and locks are the parent's."""
        if self._home is not Process.current:
            raise closed_by_fork()

    def reach(self, conversation_id: str, call: Call) -> None:
        """Make the call now, or when the conversation is awake: this wakes it.

        Raises `ConversationClosed`.
        """
        self.check_home()
        with self._changed:
            seat, new = self._seats.get(conversation_id), None
            if seat is None:
                seat = new = self._taken(conversation_id)
            elif seat.released:
                seat = self._following(seat)
            if seat.backlog is not None:
                seat.backlog.append(call)
        if new is not None:
            self._open(new)
        elif seat.backlog is None:
            self._call(seat, call)

    def follow_up(self, conversation_id: str, call: Call) -> None:
        """The same, but only if the conversation is awake or being woken."""
        self.check_home()
        if conversation_id in self._seats:
            self.reach(conversation_id, call)

    def awake(self, conversation_id: str, timeout: float) -> ContextRef | None:
        """The conversation if it is awake, or being woken. Raises what keeps it from that."""
        self.check_home()
        arrival = Arrival(self)
        with self._changed:
            seat = self._seats.get(conversation_id)
            if seat is None or seat.released:
                return None
            if seat.backlog is None:
                return seat.ref
            seat.backlog.append(arrival)
        try:
            arrival.reply.get(timeout=timeout)
        except pykka.Timeout:
            raise AskTimeout(f"{conversation_id} was not awake within {timeout} seconds") from None
        return seat.ref

    def _taken(self, conversation_id: str) -> HostSeat:
        if self.draining:
            raise self.closed()
        seat = self._seats[conversation_id] = HostSeat(self, conversation_id)
        return seat

    def _following(self, seat: HostSeat) -> HostSeat:
        """A new seat in the place of one that was left; it is opened when the store knows."""
        following = self._taken(seat.id)
        seat.next = following
        return following

    def _call(self, seat: HostSeat, call: Call) -> None:
        seat.used = time.monotonic()
        if seat.ref is None or call.make(seat.ref):
            return
        with self._changed:
            # It has ended, and may not have said so yet.
            if self._seats.get(seat.id) is seat:
                seat.released = True
        try:
            self.reach(seat.id, call)
        except ConversationClosed as error:
            call.fail(error)

    def _open(self, seat: HostSeat) -> None:
        opening = self.access.read(self._activated, seat)
        opening.add_done_callback(lambda _: self._opened(seat, opening))

    def _activated(self, seat: HostSeat) -> ContextRef:
        setup, usual = self._set_up(seat)
        immutable = State(seat.id, Moment(Zones())).at_rest_all(setup.immutable)
        state = opened(self.access, seat.id, Zones(immutable=Vector.of(immutable)))
        return AgentContext.launch(self._kept.get(seat.id, usual), state, seat=seat)

    def _set_up(self, seat: HostSeat) -> tuple[Setup, Settings]:
        setup, last = checked("setup", self._setup_of(seat.id), Setup), self._last
        if last is None or last[0] is not setup:
            # Mostly it is the same for all conversations.
            last = self._last = setup, setup.settings()
        seat.usual = last[1]
        if setup.on_change is not None:
            seat.on_change = Delivery(setup.on_change, key=seat.id)
        return last

    def _opened(self, seat: HostSeat, opening: Reply[ContextRef]) -> None:
        if (error := opening.error()) is not None:
            self._forget(seat, error)
            return
        seat.ref = opening.get()
        self._settle(seat)

    def _settle(self, seat: HostSeat) -> None:
        """Give out what has been activated."""
        # First: whoever waits for the conversation finds no more awake than may be.
        self.make_room()
        self._fill(seat)
        if self.draining:
            self.retire(seat)

    def _fill(self, seat: HostSeat) -> None:
        """Make the calls that wait, in order; those that come meanwhile wait behind them."""
        while True:
            with self._changed:
                calls = seat.backlog
                seat.backlog = [] if calls else None
                if not calls:
                    self._changed.notify_all()
                    return
            for call in calls:
                self._call(seat, call)

    def _forget(self, seat: HostSeat, error: BaseException) -> None:
        with self._changed:
            if self._seats.get(seat.id) is seat:
                del self._seats[seat.id]
            calls, seat.backlog = seat.backlog, None
            seat.released = True
            self._changed.notify_all()
        for call in calls or ():
            call.fail(error)

    def ended(
        self, seat: HostSeat, settings: Settings, unread: Sequence[Call], released: Reply[None]
    ) -> None:
        """A conversation has ended; when `released` is settled, others may have it."""
        with self._changed:
            seat.released = True
            if settings is not seat.usual:
                self._kept[seat.id] = settings
            if unread and seat.next is None and not self.draining:
                self._following(seat)
            if seat.next is not None and seat.next.backlog is not None:
                # In front: whoever asked these may have asked more since.
                seat.next.backlog[:0], unread = unread, ()
        for call in unread:
            call.fail(self.closed())
        released.add_done_callback(lambda _: self._left(seat))

    def _left(self, seat: HostSeat) -> None:
        with self._changed:
            self._leaving -= seat.asked
            seat.asked = False
            following = seat.next
            if self._seats.get(seat.id) is seat:
                del self._seats[seat.id]
            self._changed.notify_all()
        if following is not None:
            self._open(following)

    def stayed(self, seat: HostSeat) -> None:
        """It was asked to end, and is needed."""
        with self._changed:
            self._leaving -= seat.asked
            seat.asked = False
            self._changed.notify_all()
        if not seat.retiring:
            seat.used = time.monotonic()

    def branch(self, conversation_id: str, launch: Callable[[Seat], ContextRef]) -> HostedRef:
        """Seat a fork. Raises `ConversationClosed`."""
        with self._changed:
            seat = self._taken(conversation_id)
        try:
            self._set_up(seat)
            seat.ref = launch(seat)
        except BaseException as error:
            self._forget(seat, error)
            raise
        self._settle(seat)
        return HostedRef(seat.ref, self)

    def make_room(self) -> None:
        """Have those end that were not used for longest, if more are awake than should be."""
        with self._changed:
            over = len(self._seats) - self._leaving - self._limit
            if over <= 0:
                return
            asleep_soon = (seat for seat in self._seats.values() if seat.live and not seat.asked)
            many = over + self._limit // _SPARE
            chosen = heapq.nsmallest(many, asleep_soon, key=lambda seat: seat.used)
            self._ask_to_end(chosen)
        for seat in chosen:
            post(seat.actor_ref, Passivate(seat.used))

    def park(self, unused_since: float, timeout: float) -> bool:
        """Have those end that were not used since then; whether they have, or said that they stay.

        Raises `ConversationClosed`.
        """
        self.check_home()
        with self._changed:
            chosen = [
                seat
                for seat in self._seats.values()
                if seat.live and not seat.asked and seat.used <= unused_since
            ]
            self._ask_to_end(chosen)
        for seat in chosen:
            post(seat.actor_ref, Passivate(unused_since))
        end = time.monotonic() + timeout
        return all(self._has_said(seat, end) for seat in chosen)

    def _has_said(self, seat: HostSeat, end: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not seat.asked, end - time.monotonic())

    def _ask_to_end(self, seats: list[HostSeat]) -> None:
        for seat in seats:
            seat.asked = True
        self._leaving += len(seats)

    def retire(self, seat: HostSeat) -> None:
        """Have it end as soon as nothing runs there."""
        seat.retiring = True
        post(seat.actor_ref, Passivate())

    def close(self, seat: HostSeat) -> None:
        """Have it end now."""
        post(seat.actor_ref, Closing())

    def begin_to_drain(self) -> None:
        with self._changed:
            self.draining = True

    def wait_until_empty(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._seats, timeout)
