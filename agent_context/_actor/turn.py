"""A turn as requested, and the reports of its task to the actor."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from agent_context._actor.hidden_messages import RecalledMessages
from agent_context._actor.prompt_cache_tracker import PrefixComparison
from agent_context._actor.state import TurnMessage
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context._runtime import Reply
from agent_context.compression.executor import CompressionResult
from agent_context.messages import Completion
from agent_context.model_call import ModelMiddleware
from agent_context.options import SendOptions
from agent_context.prompt_cache import PrefixReport
from agent_context.tools.loop import ToolLoop

__all__ = [
    "CompressionReady",
    "MessagesRecalled",
    "PrefixChanged",
    "RoundFinished",
    "RoundStored",
    "TurnFinished",
    "TurnRequest",
    "TurnTimedOut",
]


class TurnRequest(Struct, frozen=True, kw_only=True):
    """A `Send` or `SendStream`, validated, with every default filled in."""

    options: SendOptions
    messages: tuple[TurnMessage, ...] = ()
    """What it says, stored with the answer."""
    context: tuple[StoredMessage, ...] = ()
    """Sent in front of what it says, never stored."""
    history: PersistentVector | None = None
    """Sent in the place of the compressed and incremental zones."""
    outgoing: tuple[StoredMessage, ...] | None = None
    """Sent in the place of `messages`."""
    loop: ToolLoop | None = None
    around: ModelMiddleware | None = None
    """Stands around each call of the model."""
    key: str | None = None
    """The idempotency key."""
    ask: object = None
    """The message that asked for it, by which it is cancelled."""

    @property
    def stores(self) -> bool:
        """Whether the turn's messages are stored."""
        return self.options.commit == "auto"


class TurnFinished(Struct, frozen=True):
    """The task has ended."""

    turn_id: str
    completion: Completion | None = None
    answer: StoredMessage | None = None
    """The completion's message in its stored form."""
    comparison: PrefixComparison | None = None
    """How the request that was answered compares with the one before it."""
    window_share: float = 0.0
    """How much of the window that request took; 0 if the window isn't known."""
    error: BaseException | None = None


class TurnTimedOut(Struct, frozen=True):
    """The turn's deadline has passed."""

    turn_id: str


class CompressionReady(Struct, frozen=True):
    """A compression made during a turn is ready to be applied."""

    turn_id: str
    result: CompressionResult
    reply: Reply[Zones]
    """Settled with the zones that the turn may send."""


class RoundFinished(Struct, frozen=True):
    """Every tool call of an answer has its result: the round can be stored."""

    turn_id: str
    completion: Completion
    messages: Sequence[TurnMessage]
    """The answer and the results of its calls."""
    comparison: PrefixComparison | None
    reply: Reply[RoundStored]


class RoundStored(Struct, frozen=True):
    """A round is stored."""

    zones: Zones
    """What the next request may send."""
    stored_ids: frozenset[str]
    """Of all messages that the turn has stored so far."""
    messages: Sequence[TurnMessage]
    """The answer and the results, as they were stored."""


class PrefixChanged(Struct, frozen=True):
    """A request is sent that doesn't begin with the previous one."""

    turn_id: str
    report: PrefixReport


class MessagesRecalled(Struct, frozen=True):
    """A turn sends messages again that a compression took away."""

    turn_id: str
    found: RecalledMessages
