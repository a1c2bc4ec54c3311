"""One turn of a conversation, and what its job reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from agent_context._actor.checkpoint import TurnCheckpoint
from agent_context._actor.turn_task import RoundStored, TurnTask
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context._runtime import IoTask, Reply, Timer
from agent_context.compression.executor import CompressionResult
from agent_context.errors import AgentContextError
from agent_context.messages import Completion, Message, MessageId, new_id
from agent_context.options import SendOptions
from agent_context.prompt_cache import PrefixReport
from agent_context.protocol import Send, SendStream
from agent_context.stream import Channel

__all__ = [
    "CompressionReady",
    "PrefixChanged",
    "RoundFinished",
    "Turn",
    "TurnEnded",
    "TurnTimedOut",
]


class TurnEnded(Struct, frozen=True):
    """The job is over."""

    turn_id: str
    completion: Completion | None = None
    error: BaseException | None = None


class TurnTimedOut(Struct, frozen=True):
    """The turn's deadline has passed."""

    turn_id: str


class CompressionReady(Struct, frozen=True):
    """A turn's own compression is ready."""

    turn_id: str
    compaction: CompressionResult
    reply: Reply[Zones]


class RoundFinished(Struct, frozen=True):
    """A turn's tool calls were answered."""

    turn_id: str
    completion: Completion
    results: tuple[Message, ...]
    reply: Reply[RoundStored]


class PrefixChanged(Struct, frozen=True):
    """A turn's request goes out that doesn't begin with the last one."""

    turn_id: str
    report: PrefixReport


@dataclass(slots=True, eq=False)
class Turn:
    """One turn, from its acceptance to its end."""

    asked: Send | SendStream
    options: SendOptions
    records: tuple[StoredMessage, ...]
    """What it says and has not stored yet."""
    context: tuple[StoredMessage, ...] = ()
    history: PersistentVector | None = None
    id: str = field(default_factory=new_id)
    channel: Channel | None = None
    replies: list[Reply[Completion]] = field(default_factory=list[Reply[Completion]])
    deadline: float = 0.0
    """On the monotonic clock."""
    timer: Timer | None = None
    """Ends the turn at its deadline while it waits."""
    job: IoTask | None = None
    call: TurnTask | None = None
    after: MessageId | None = None
    """The last stored message that the request held; None if it held none."""
    stored_ids: frozenset[str] = frozenset()
    """Ids of what the turn has stored so far."""
    abort_reason: AgentContextError | None = None
    keep_partial: bool = True

    def is_past_soft_limit(self) -> bool:
        """Whether the request took more of the window than `soft_limit` allows."""
        limit, call = self.options.soft_limit, self.call
        return limit is not None and call is not None and call.share > limit

    def can_join(self) -> bool:
        """Whether what it says may be said by another turn, which then answers for it."""
        alone = self.channel is not None or self.asked.key is not None
        return self.options.on_busy == "steer" and not alone

    def cancel_task(self) -> None:
        """Cancel what is done for it on the I/O loop."""
        if self.job is not None:
            self.job.cancel()

    def fail(self, error: BaseException, *, kept: Message | None = None) -> None:
        """Tell everybody who waits. `kept` is the message that it left in the conversation."""
        if self.channel is not None:
            self.channel.end(error=error, kept=kept)
        for reply in self.replies:
            reply.set_error(error)

    def initial_checkpoint(self) -> TurnCheckpoint:
        """What is known of it, or of its next round, before the model is asked."""
        keep = self.keep_partial and self.options.commit == "auto"
        return TurnCheckpoint(self.id, keep, self.records, self.after, key=self.asked.key)

    def checkpoint(self) -> TurnCheckpoint:
        """What is known of it. Any thread may ask."""
        call = self.call
        if call is None:
            return self.initial_checkpoint()
        calling = call.calling
        answer = calling.message if calling is not None else call.assembly.to_interrupted_message()
        return replace(
            self.initial_checkpoint(),
            pending_messages=call.records,
            answer=answer,
            executing_tools=calling is not None,
            results=tuple(call.results),
            answers_own_calls=call.loop is not None,
        )
