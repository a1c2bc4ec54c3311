"""One turn of a conversation, and what its job reports."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from agent_context.compression.run import Compaction
from agent_context.conversation.calls import Call, RoundKept
from agent_context.conversation.drafts import Draft
from agent_context.errors import AgentContextError
from agent_context.ledger import PrefixReport
from agent_context.messages import Completion, Message, MessageId, new_id
from agent_context.options import SendOptions
from agent_context.protocol import Send, SendStream
from agent_context.records import Record
from agent_context.runtime import Job, Reply, Timer
from agent_context.stream import Channel
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["PrefixLost", "RoundEnded", "SwapWanted", "Turn", "TurnEnded", "TurnOverdue"]


class TurnEnded(Struct, frozen=True):
    """The job is over."""

    turn_id: str
    completion: Completion | None = None
    error: BaseException | None = None


class TurnOverdue(Struct, frozen=True):
    """The turn's deadline has passed."""

    turn_id: str


class SwapWanted(Struct, frozen=True):
    """A turn's own compression is ready."""

    turn_id: str
    compaction: Compaction
    reply: Reply[Zones]


class RoundEnded(Struct, frozen=True):
    """A turn's tool calls were answered."""

    turn_id: str
    completion: Completion
    results: tuple[Message, ...]
    reply: Reply[RoundKept]


class PrefixLost(Struct, frozen=True):
    """A turn's request goes out that doesn't begin with the last one."""

    turn_id: str
    report: PrefixReport


@dataclass(slots=True, eq=False)
class Turn:
    """One turn, from its acceptance to its end."""

    asked: Send | SendStream
    options: SendOptions
    records: tuple[Record, ...]
    """What it says and has not stored yet."""
    context: tuple[Record, ...] = ()
    history: Vector | None = None
    id: str = field(default_factory=new_id)
    channel: Channel | None = None
    replies: list[Reply[Completion]] = field(default_factory=list[Reply[Completion]])
    deadline: float = 0.0
    """On the monotonic clock."""
    timer: Timer | None = None
    """Ends the turn at its deadline while it waits."""
    job: Job | None = None
    call: Call | None = None
    after: MessageId | None = None
    """The last stored message that the request held; None if it held none."""
    own: frozenset[str] = frozenset()
    """Ids of what the turn has stored so far."""
    why_aborted: AgentContextError | None = None
    keep: bool = True

    def filled_past_soft_limit(self) -> bool:
        """Whether the request took more of the window than `soft_limit` allows."""
        limit, call = self.options.soft_limit, self.call
        return limit is not None and call is not None and call.share > limit

    def joins(self) -> bool:
        """Whether what it says may be said by another turn, which then answers for it."""
        alone = self.channel is not None or self.asked.key is not None
        return self.options.on_busy == "steer" and not alone

    def end_job(self) -> None:
        """Cancel what is done for it on the I/O loop."""
        if self.job is not None:
            self.job.cancel()

    def fail(self, error: BaseException, *, kept: Message | None = None) -> None:
        """Tell everybody who waits. `kept` is the message that it left in the conversation."""
        if self.channel is not None:
            self.channel.end(error=error, kept=kept)
        for reply in self.replies:
            reply.set_error(error)

    def begun(self) -> Draft:
        """What is known of it, or of its next round, before the model is asked."""
        keep = self.keep and self.options.commit == "auto"
        return Draft(self.id, keep, self.records, self.after, key=self.asked.key)

    def draft(self) -> Draft:
        """What is known of it. Any thread may ask."""
        call = self.call
        if call is None:
            return self.begun()
        calling = call.calling
        answer = calling.message if calling is not None else call.assembly.interrupted()
        return replace(
            self.begun(),
            said=call.records,
            answer=answer,
            calling=calling is not None,
            results=tuple(call.results),
            closes=call.loop is not None,
        )
