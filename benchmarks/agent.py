"""What an agent adds to a turn, with 0, 1,000 and 10,000 messages in the session.

The model answers at once, so that a run is all overhead. The peer is the bare turn, `aask(Send)`,
in a conversation of the same length. Each run has one provider that adds an instruction and is told
the end. Rounds of both alternate; the turns grow both conversations alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any, Final

from agent_context import (
    AgentContext,
    Completion,
    ContextBackend,
    ContextProvider,
    ContextRef,
    Extend,
    Finished,
    Message,
    Send,
    StreamEvent,
)
from agent_context.backend import Request
from agent_context.providers import SessionContext
from benchmarks.report import Row, main

__all__ = ["rows"]

LENGTHS: Final = (0, 1_000, 10_000)
GOAL: Final = 2.0
"""Milliseconds that a run may add, whatever the length."""


class Instant(ContextBackend):
    """Says the same at once."""

    async def send(self, request: Request) -> Completion:
        del request
        return Completion(message=Message.assistant("Yes."))

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        yield Finished(await self.send(request))


class Adds(ContextProvider):
    """Adds an instruction to each run."""

    async def before_run(self, *, context: SessionContext, **_: Any) -> None:  # noqa: ANN401 - hooks
        context.extend_instructions(self, "Be brief.")


def rows(scale: float) -> Iterator[Row]:
    for length in LENGTHS:
        runs, turns = asyncio.run(_measured(length, max(20, round(200 * scale))))
        added = (runs - turns) * 1e3
        yield Row(
            what=f"a run with a provider, {length:,} messages in the session",
            figure=f"{runs * 1e3:.2f} ms",
            floor=f"the bare turn: {turns * 1e3:.2f} ms",
            ratio=f"{runs / turns:.2f}",
            goal=f"adds ≤ {GOAL:.0f} ms",
            met=added <= GOAL,
        )


async def _measured(length: int, times: int) -> tuple[float, float]:
    backend = Instant()
    agent = backend.as_agent(context_providers=[Adds()])
    session = agent.create_session()
    await agent.run("Hello?", session=session, wait_for_persistence=True)
    conversation = AgentContext.start(backend)
    assert session.conversation is not None
    for ref in (session.conversation, conversation):
        await _fill(ref, length)
    runs: list[float] = []
    turns: list[float] = []
    for _ in range(times):
        runs.append(await _timed(agent.run("And now?", session=session)))
        await agent.drain(session)
        turns.append(await _timed(conversation.aask(Send(messages=[Message.user("And now?")]))))
    for ref in (session.conversation, conversation):
        ref.stop()
    return statistics.median(runs), statistics.median(turns)


async def _fill(ref: ContextRef, length: int) -> None:
    said = [Message.user("What?"), Message.assistant("That.")] * (length // 2)
    await ref.aask(Extend(said), timeout=60)


async def _timed(work: Awaitable[object]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


if __name__ == "__main__":
    main(__doc__, rows)
