"""A toolbox: runs the calls of a model, and answers every one of them."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct, field

from agent_context._validation import check_callback
from agent_context.errors import InvalidOptions, ToolError
from agent_context.messages import Message, TextPart, ToolCall
from agent_context.tools.approval import (
    Always,
    ApprovalCallback,
    ApprovalDecision,
    ApprovalDecisions,
    StandingApprovals,
    check_approval,
    distinct_ids,
    refusal_text,
    request_decision,
)
from agent_context.tools.arguments import require_arguments
from agent_context.tools.call import AroundTool, RepeatedFailures, run_tool, surround
from agent_context.tools.function import tool as tool_of
from agent_context.tools.result_parts import result_message, to_parts
from agent_context.tools.result_store import (
    READ_RESULT_TOOL,
    InMemoryToolResults,
    ToolResultStore,
    make_read_result_tool,
    truncate_parts,
)
from agent_context.tools.tool import CallableTool, RunContext, Tool, ToolContext

__all__ = ["Limits", "ToolRunResult", "Toolbox"]

Done = Callable[[Message], object]
_Verdict = bool | str | Message
Begin = Callable[[], Awaitable[object]]


class Limits(Struct, frozen=True, kw_only=True):
    """What calls may take, where a tool doesn't say it for itself."""

    concurrency: int = 16
    """Calls that run at once."""
    timeout: float | None = 120.0
    """Seconds for one call; None for no limit."""
    max_result: int = 32_000
    """Characters of a text that the model reads at once."""
    details: bool = True
    """Whether the model is told what went wrong inside a tool; a `ToolError` it always reads."""

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.max_result < 1:
            raise InvalidOptions(f"limits: concurrency and max_result are at least 1: {self}")
        if self.timeout is not None and self.timeout <= 0:
            raise InvalidOptions(f"limits: timeout is more than 0 seconds, or None: {self}")


class ToolRunResult(Struct, frozen=True):
    """What became of a model's calls: all are answered, or all of them wait."""

    results: tuple[Message, ...] = ()
    """One for each call, in the order of the calls."""
    pending: tuple[ToolCall, ...] = ()
    """The calls that somebody must decide on first. Nothing was run then, not even the others."""
    failed: frozenset[str] = frozenset()
    """The ids of the calls that went wrong; their results say how."""


class Toolbox:
    """Tools by name, with the rules by which they are run.

    A call never raises: what goes wrong is a result that the model can act on.
    """

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        parallel: bool = True,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        approve: ApprovalCallback | None = None,
        keeper: ToolResultStore | None = None,
        reader: bool = False,
        conversation_id: str | None = None,
        progress: Callable[[ToolCall, str], object] | None = None,
        around: AroundTool | None = None,
        run: RunContext[Any] | None = None,
    ) -> None:
        """Gather tools.

        Args:
            tools: Tools, or functions to make them of. The calls of a plain `Tool` are left to the
                program: they count as pending.
            parallel: Whether the calls of one answer run at the same time; else in their order.
            limits: What calls may take.
            approve: Decides on calls that need approval; without it they are pending.
            keeper: Keeps the full texts of results that are shortened; else this toolbox does.
            reader: Whether the tool for reading them is offered before one was shortened. A tool
                that comes later changes the beginning of the prompt, and with it what is cached.
            conversation_id: For the tools that want to know.
            progress: Hears what tools report, on whatever thread they run.
            around: Stands around each call that is allowed to run.
            run: For the tools that want to know; its session remembers what was allowed for good.

        Raises:
            InvalidOptions: two tools have one name, a function can't be a tool, or one takes other
                `deps` than the run has.
        """
        self._parallel = parallel
        self._limits = limits
        self._approve = check_approval(approve)
        self._keeper: ToolResultStore = InMemoryToolResults() if keeper is None else keeper
        self._offers_reader = reader
        self._conversation_id = conversation_id
        self._progress = None if progress is None else check_callback("progress", progress)
        self._around, self._run = around, run
        session = None if run is None else run.session
        self._standing = StandingApprovals({} if session is None else session.state)
        self._tools = _by_name(tools)
        for item in self._tools.values():
            if isinstance(item, CallableTool) and run is not None:
                item.check_run(run)
        self._reader = make_read_result_tool(self._keeper, limits.max_result)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What the model is told, in the order of registration."""
        offered = list(self._tools.values())
        if self._offers_reader and READ_RESULT_TOOL not in self._tools:
            offered.append(self._reader)
        return tuple(item.spec if isinstance(item, CallableTool) else item for item in offered)

    async def run(
        self,
        calls: Sequence[ToolCall],
        *,
        done: Done | None = None,
        decisions: ApprovalDecisions | None = None,
        repeats: RepeatedFailures | None = None,
        begin: Begin | None = None,
    ) -> ToolRunResult:
        """Answer the calls of one message.

        If a call needs approval and there is none, nothing runs and the whole message waits for
        `resume`. A cancelled run cancels what can be, and keeps what `done` was called with.

        Args:
            calls: The calls, as the model made them.
            done: Called with each result as soon as it is there.
            decisions: What was decided on calls that need approval, by the ids under which they
                were pending.
            repeats: What failed in earlier rounds, to tell a model that doesn't learn.
            begin: Awaited once all is decided, before the first call runs.
        """
        asked = [self._prepare(*each) for each in zip(distinct_ids(calls), calls, strict=True)]
        verdicts = [await self._verdict(each, decisions or {}) for each in asked]
        open_ones = [each.shown for each, said in zip(asked, verdicts, strict=True) if said is None]
        if open_ones:
            return ToolRunResult(pending=tuple(open_ones))
        if begin is not None:
            await begin()
        run = _Round(done, repeats or RepeatedFailures())
        answers = [
            partial(self._answer, run, each, said)
            for each, said in zip(asked, verdicts, strict=True)
            if said is not None
        ]
        results = await self._all(answers)
        return ToolRunResult(tuple(results), failed=frozenset(run.failed))

    async def resume(
        self,
        calls: Sequence[ToolCall],
        decisions: ApprovalDecisions,
        *,
        done: Done | None = None,
        repeats: RepeatedFailures | None = None,
        begin: Begin | None = None,
    ) -> ToolRunResult:
        """Answer calls that were pending, as it was decided; what is still open stays pending."""
        return await self.run(calls, done=done, decisions=decisions, repeats=repeats, begin=begin)

    def _find(self, name: str) -> CallableTool:
        found = self._tools.get(name)
        if isinstance(found, CallableTool):
            return found
        if name == READ_RESULT_TOOL:
            return self._reader
        raise ToolError(_unknown(name, list(self._tools)))

    def _prepare(self, key: str, call: ToolCall) -> _Asked:
        """The call with the arguments as its tool will read them."""
        found = self._tools.get(call.name)
        if not isinstance(found, CallableTool):
            return _Asked(key, call)
        try:
            require_arguments(call.arguments, found.parameters, who=found.name)
            arguments = found.normalize(call.arguments)
        except Exception:  # noqa: BLE001 - running it says what is wrong
            return _Asked(key, call, fits=False)
        return _Asked(key, call.model_copy(update={"arguments": arguments}))

    async def _verdict(self, asked: _Asked, decisions: ApprovalDecisions) -> _Verdict | None:
        """Whether the call may run; None if nobody has decided."""
        if asked.key in decisions:
            return self._remember(asked, decisions[asked.key])
        found = self._tools.get(asked.call.name)
        if found is None:
            return True
        if not isinstance(found, CallableTool):
            return None
        if not asked.fits or not found.needs_approval(asked.call):
            return True
        if self._standing.allows(asked.call):
            return True
        if self._approve is None:
            return None
        return self._remember(asked, await request_decision(self._approve, asked.shown))

    def _remember(self, asked: _Asked, decision: ApprovalDecision | None) -> _Verdict | None:
        """The decision, after one that holds for later calls too was noted."""
        if not isinstance(decision, Always):
            return decision
        self._standing.add(asked.call, decision)
        return True

    async def _answer(self, run: _Round, asked: _Asked, decision: _Verdict) -> Message:
        message = await self._carry_out(run, asked.call, decision)
        if run.done is not None:
            run.done(message)
        return message

    async def _carry_out(self, run: _Round, call: ToolCall, decision: _Verdict) -> Message:
        if isinstance(decision, Message):
            return result_message(call.id, decision.parts)
        if decision is not True:
            return run.fail(call, refusal_text(call.name, decision))
        try:
            message = await self._call(call)
        except ToolError as error:
            return run.fail(call, run.repeats.record_failure(call, str(error)))
        run.repeats.record_success(call)
        return message

    async def _call(self, call: ToolCall) -> Message:
        """The result of a call, short enough to be read. Raises `ToolError`."""
        found, limits = self._find(call.name), self._limits
        timeout = limits.timeout if found.timeout is None else found.timeout
        context = ToolContext(call, self._conversation_id, self._progress, run=self._run)

        async def proceed(context: ToolContext) -> object:
            return await run_tool(found, context, timeout=timeout, details=limits.details)

        value = await surround(self._around, context, proceed, details=limits.details)
        parts = to_parts(value)
        most = found.max_result or limits.max_result
        short = await truncate_parts(parts, call.id, most, self._keeper)
        self._offers_reader = self._offers_reader or short != parts
        return result_message(call.id, short, value)

    async def _all(self, answers: Sequence[_Answer]) -> list[Message]:
        if not self._parallel:
            return [await answer() for answer in answers]
        places = asyncio.Semaphore(self._limits.concurrency)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_in_turn(places, answer)) for answer in answers]
        return [task.result() for task in tasks]


_Answer = Callable[[], Coroutine[Any, Any, Message]]


async def _in_turn(places: asyncio.Semaphore, answer: _Answer) -> Message:
    async with places:
        return await answer()


class _Asked(Struct, frozen=True):
    """A call of one message."""

    key: str
    """Tells it from the others, if the model's server gave them one id."""
    call: ToolCall
    fits: bool = True
    """Whether its arguments do, as far as can be told without running it."""

    @property
    def shown(self) -> ToolCall:
        """The call as it is put before whoever decides on it."""
        return self.call.model_copy(update={"id": self.key})


class _Round(Struct, frozen=True):
    """What the answers to the calls of one message share."""

    done: Done | None
    repeats: RepeatedFailures
    failed: set[str] = field(default_factory=set[str])

    def fail(self, call: ToolCall, text: str) -> Message:
        self.failed.add(call.id)
        return result_message(call.id, (TextPart(text=text),))


_CLOSE: Final = 0.6


def _unknown(name: str, names: Sequence[str]) -> str:
    if not names:
        return f"There is no tool {name!r}; there are no tools at all."
    close = difflib.get_close_matches(name, names, n=1, cutoff=_CLOSE)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no tool {name!r}. The tools are: {', '.join(names)}.{guess}"


def _by_name(tools: Iterable[Tool | Callable[..., Any]]) -> Mapping[str, Tool]:
    known: dict[str, Tool] = {}
    for item in tools:
        made = item if isinstance(item, Tool) else tool_of(item)
        if made.name in known and known[made.name] is not item:
            raise InvalidOptions(
                f"two tools are called {made.name!r}: give one of them another name="
            )
        known[made.name] = made
    return known
