"""The job of a turn: it runs on the I/O loop and tells the actor what it needs and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from agent_context.compression.run import Compaction
from agent_context.conversation.calls import Call, RoundKept, converse
from agent_context.conversation.turn import RoundEnded, SwapWanted, Turn, TurnEnded, TurnOverdue
from agent_context.errors import TurnCancelled
from agent_context.messages import Completion, Message
from agent_context.runtime import Job, Reply, io_loop
from agent_context.zones import Zones

__all__ = ["spawned"]


def spawned(
    turn: Turn,
    call: Call,
    zones: Zones,
    noted: Reply[None] | None,
    post: Callable[[object], bool],
) -> Job:
    """Begin the job. It calls nobody before `noted` is settled."""
    turn_id, seconds = turn.id, turn.deadline - time.monotonic()

    async def swap(compaction: Compaction) -> Zones:
        reply: Reply[Zones] = Reply()
        post(SwapWanted(turn_id, compaction, reply))
        return await reply

    async def keep(completion: Completion, results: tuple[Message, ...]) -> RoundKept:
        reply: Reply[RoundKept] = Reply()
        post(RoundEnded(turn_id, completion, results, reply))
        return await reply

    async def work() -> None:
        # On the loop itself: a timer of its own would cost two calls across threads.
        overdue = asyncio.get_running_loop().call_later(seconds, post, TurnOverdue(turn_id))
        try:
            if noted is not None:
                await noted
            post(TurnEnded(turn_id, completion=await converse(call, zones, swap, keep)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            post(TurnEnded(turn_id, error=error))
        finally:
            overdue.cancel()

    job = io_loop().spawn(work)
    cancelled = TurnEnded(turn_id, error=TurnCancelled("the turn's job was cancelled"))
    job.add_done_callback(lambda _: post(cancelled))
    return job
