"""Who answers the model's tool calls while a turn goes on, round by round."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

from msgspec import Struct

from agent_context.errors import InvalidOptions, TurnAborted
from agent_context.messages import Completion, Message, ToolCall, Usage
from agent_context.tools.call import RepeatedFailures
from agent_context.tools.offload import LoopClosed, run_on_loop
from agent_context.tools.tool import Tool
from agent_context.tools.toolbox import Toolbox, ToolRunResult

__all__ = ["ToolLoop", "ToolLoopRunner", "ToolRound"]

MAX_EXTRA_ROUNDS: Final = 2
"""How often a model may still call tools after it was told to answer without them."""

_GRACE: Final = 5.0
"""Seconds that cancelled tools have to end."""

_NO_ROUNDS_LEFT: Final = (
    "The call was not carried out: there are no rounds of tool calls left. Answer now, without "
    "calling tools."
)


class ToolRound(Struct, frozen=True):
    """What came of the calls of one answer. The model is asked again, with it."""

    results: Sequence[Message]
    """A tool message for each call, in the order of the calls; others may follow."""
    tools: Sequence[Tool] | None = None
    """What the turn's later calls offer in the place of its tools; None changes nothing."""
    tool_choice: str | None = None
    """The same of its `tool_choice`."""


@runtime_checkable
class ToolLoop(Protocol):
    """Carries out what the model asks for."""

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        """The round, or None to end the turn here and leave the calls open.

        Called on the library's I/O loop, which it must not block, for every answer with tool
        calls. `done` is told each result as soon as it is there, from any thread, so that it
        outlives a crash or a cancelled turn. Cancelled with the turn; what it raises ends the turn.
        """
        ...


class ToolLoopRunner:
    """A `ToolLoop` for one turn, made where the turn is asked for.

    Tools run on `loop`, in the context variables of the place where this was made; without a loop
    they run on the library's own, which they must not block.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        max_rounds: int = 20,
        begin_round: Callable[[Completion], object] | None = None,
    ) -> None:
        """Bind a toolbox to a turn.

        Args:
            toolbox: What runs the calls.
            loop: Where asynchronous tools run.
            max_rounds: Rounds of tool calls; after that the model has to answer without tools.
            begin_round: Told each answer before its calls are carried out; it may raise.

        Raises:
            InvalidOptions: there would be no round at all.
        """
        if max_rounds < 1:
            raise InvalidOptions(f"max_rounds: at least 1, not {max_rounds}")
        self._toolbox = toolbox
        self._loop = loop
        self._max_rounds, self._begin_round = max_rounds, begin_round
        self._variables = contextvars.copy_context()
        self._repeats = RepeatedFailures()
        self._offered = toolbox.tools
        self._running: asyncio.Task[Any] | None = None
        """Runs the calls of a round, on `loop`."""
        self.rounds = 0
        """How many rounds were answered."""
        self.said: list[Message] = []
        """What model and tools said in them."""
        self.usages: list[Usage] = []
        """What the model's answers in them cost."""
        self.pending: tuple[ToolCall, ...] = ()
        """The calls that wait for a decision, after `answer` has returned None."""

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        """Run the calls of `completion`, or leave all of them open if one must be decided on."""
        if self.rounds >= self._max_rounds + MAX_EXTRA_ROUNDS:
            raise TurnAborted(
                f"the model went on calling tools after {self._max_rounds} rounds, although it was "
                "told to answer without them"
            )
        if self._begin_round is not None:
            self._begin_round(completion)
        calls = completion.message.tool_calls
        if self.rounds >= self._max_rounds:
            outcome = _refuse(calls, done)
        else:
            run = partial(self._toolbox.run, calls, repeats=self._repeats)
            outcome = await self._run(run, done)
        if outcome.pending:
            self.pending = outcome.pending
            return None
        self.rounds += 1
        self.said += [completion.message, *outcome.results]
        self.usages.append(completion.usage)
        return ToolRound(outcome.results, *self._changes())

    async def over(self) -> None:
        """Wait on `loop` for tools that were cancelled, for a few seconds at most."""
        if self._running is not None and not self._running.done():
            await asyncio.wait([self._running], timeout=_GRACE)

    def _changes(self) -> tuple[Sequence[Tool] | None, str | None]:
        """The tools and the tool choice of the calls that follow, where they change."""
        tools, before = self._toolbox.tools, self._offered
        self._offered = tools
        choice = "none" if self.rounds >= self._max_rounds else None
        return (None if tools == before else tools), choice

    async def _run(
        self,
        run: Callable[..., Coroutine[Any, Any, ToolRunResult]],
        done: Callable[[Message], object],
    ) -> ToolRunResult:
        here = asyncio.get_running_loop()
        if self._loop is None or self._loop is here:
            return await run(done=done)

        try:
            work = partial(self._run_here, partial(run, done=done))
            return await run_on_loop(work, self._loop, self._variables.copy())
        except LoopClosed as error:
            raise TurnAborted(f"the loop that the tools belong to is gone: {error}") from error

    async def _run_here(
        self, run: Callable[[], Coroutine[Any, Any, ToolRunResult]]
    ) -> ToolRunResult:
        self._running = asyncio.current_task()
        return await run()


def _refuse(calls: Sequence[ToolCall], done: Callable[[Message], object]) -> ToolRunResult:
    """Leave undone what is called for although there are no rounds left."""
    refusals = tuple(Message.tool(call.id, _NO_ROUNDS_LEFT) for call in calls)
    for refusal in refusals:
        done(refusal)
    return ToolRunResult(refusals, failed=frozenset(call.id for call in calls))
