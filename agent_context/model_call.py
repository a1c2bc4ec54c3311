"""One call of the model in a turn, as those see it who stand around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.messages import Completion, Message
from agent_context.models import ModelFacts
from agent_context.options import SendOptions

__all__ = ["ModelCall", "ModelMiddleware"]


class ModelCall(Struct, frozen=True, kw_only=True):
    """A call that is about to be made.

    One with other options may be made in its place: `msgspec.structs.replace(call, options=…)`.
    """

    options: SendOptions
    """The turn's, as far as they hold for this call."""
    round: int = 0
    """How many rounds of tool calls the turn has had."""
    conversation_id: str = ""
    vendor: str = ""
    """The company or server that is asked."""
    facts: ModelFacts | None = None
    """What is known of the model."""
    tokens: int = 0
    """What the request takes as it is now, without the answer: counted or estimated."""
    zones: Zones = Zones()
    trailing: tuple[StoredMessage, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        """All that would be sent now, built when it is asked for. A compression may shorten it."""
        return tuple(record.message for record in (*self.zones, *self.trailing))


ModelMiddleware = Callable[
    [ModelCall, Callable[[ModelCall], Awaitable[Completion]]], Awaitable[Completion]
]
"""Called with a call and with what makes it, whose result, a `Completion`, it returns.

It may change the options, make the call again, or give an answer of its own without making it. What
it raises ends the turn, and of an answer that it refuses nothing is stored.
"""
