"""One turn of a conversation, and what its job reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from agent_context.compression.run import Compaction
from agent_context.conversation.calls import Call, RoundKept
from agent_context.errors import AgentContextError
from agent_context.ledger import PrefixReport
from agent_context.messages import Completion, Message, new_id
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


_NOT_RUN = "[interrupted] The call was not carried out: its turn was cut short."
_UNKNOWN = (
    "[interrupted] The turn was cut short while the call was carried out: whether it had an effect "
    "is not known."
)


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
    after: Record | None = None
    """The last stored message that the request held."""
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
        return self.options.on_busy == "steer" and self.channel is None

    def left(self) -> tuple[Message, ...]:
        """What is worth keeping of a turn that was cut short, its calls answered if it has a loop.

        Empty if there is nothing.
        """
        call = self.call
        if call is None:
            return ()
        if call.calling is not None:
            return _closed(call.calling.message, call.results, _UNKNOWN)
        arrived = call.assembly.interrupted()
        if arrived is None:
            return ()
        return (arrived,) if call.loop is None else _closed(arrived, (), _NOT_RUN)


def _closed(answer: Message, results: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The answer with a result for each of its calls."""
    known = {result.tool_call_id: result for result in results}
    closing = [known.get(each.id) or Message.tool(each.id, text) for each in answer.tool_calls]
    return (answer, *closing)
