"""How a conversation is found, with the patience of whoever looks for it."""

from __future__ import annotations

import time
from typing import Final

from agent_context.errors import ConversationClosed, OwnedElsewhere, UnknownConversation
from agent_context.host.house import House
from agent_context.host.refs import Arrival, HostedRef
from agent_context.runtime import Failed, Later, Reply, io_loop
from agent_context.stores.store import About

__all__ = ["Search"]

_PAUSE: Final = 0.2
"""Seconds between two looks at a conversation that another process owns."""


class Search:
    """Looks for one conversation. All who do so at once share what it takes to activate it."""

    def __init__(self, house: House, conversation_id: str, patience: float) -> None:
        self._house = house
        self._id = conversation_id
        self._end = time.monotonic() + patience
        self.found: Reply[HostedRef] = Reply()

    def known(self) -> None:
        """Look for it, but don't make it."""
        reading = self._house.access.read(self._house.access.store.about, self._id)
        reading.add_done_callback(self._go_on)

    def begin(self) -> None:
        """Look for it, or make it."""
        arrival = Arrival(self._house)
        arrival.reply.add_done_callback(self._arrived)
        try:
            self._house.reach(self._id, arrival)
        except ConversationClosed as error:
            self.found.set(Failed(error))

    def _go_on(self, reading: Reply[About | None]) -> None:
        if (error := reading.error()) is not None:
            self.found.set(Failed(error))
        elif reading.get() is None:
            unknown = UnknownConversation(f"the store has no conversation {self._id}")
            self.found.set(Failed(unknown))
        else:
            self.begin()

    def _arrived(self, arrival: Reply[HostedRef]) -> None:
        owned = isinstance(arrival.error(), OwnedElsewhere)
        if owned and time.monotonic() < self._end:
            io_loop().call_later(_PAUSE, self.begin)
        else:
            self.found.set(Later(arrival))
