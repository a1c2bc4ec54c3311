"""One run of an agent: providers before it, one turn of the conversation, providers after it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from agent_context._actor import checkpoint
from agent_context._validation import check_type
from agent_context.agent.background import BackgroundTasks
from agent_context.agent.conversations import SessionConversations
from agent_context.agent.middleware import MiddlewareChain
from agent_context.agent.request_builder import RequestBuilder
from agent_context.agent.run_request import RunRequest
from agent_context.agent.stream import AgentUpdate, RunUpdates, UpdateSink
from agent_context.agent.structured_output import request_structured_output, retry_request
from agent_context.agent.turn import Request, Turn
from agent_context.agent.usage_limits import UsageMeter
from agent_context.errors import (
    AgentContextError,
    ConversationBusy,
    ConversationClosed,
    DeadlockError,
    InvalidOptions,
    InvalidOutput,
    RunCancelled,
    StoreError,
)
from agent_context.messages import Completion, Message, Role, ToolCall, Usage, new_id
from agent_context.options import release_tool_choice
from agent_context.protocol import Extend
from agent_context.providers.chain import ProviderChain
from agent_context.providers.context import SessionContext
from agent_context.providers.provider import AgentLike
from agent_context.providers.response import AgentResponse, Diagnostic
from agent_context.ref import ContextRef
from agent_context.sessions.lazy_messages import ConversationMessages
from agent_context.sessions.pending_calls import (
    forget_pending,
    last_open_tool_calls,
    note_pending,
    recall_decisions,
)
from agent_context.sessions.session import AgentSession
from agent_context.structured_output import parse_output
from agent_context.tools import ApprovalDecision, Tool, Toolbox, ToolRunResult
from agent_context.tools.approval import Always, distinct_ids
from agent_context.tools.loop import ToolLoopRunner
from agent_context.tools.result_store import READ_RESULT_TOOL, ToolResultStore
from agent_context.tools.tool import RunContext

__all__ = [
    "HAS_TRUNCATED_RESULTS",
    "Run",
    "RunServices",
    "check_decisions",
    "close_calls",
]

logger = logging.getLogger(__name__)

HAS_TRUNCATED_RESULTS: Final = "shortened_tool_results"
"""In a session's state: some tool result was cut, so the tool that reads on is offered."""


class RunServices(AgentLike, Protocol):
    """What a run needs of its agent."""

    chain: ProviderChain
    requests: RequestBuilder
    conversations: SessionConversations
    background: BackgroundTasks
    max_rounds: int
    middleware: MiddlewareChain
    instruct: Callable[[RunContext[Any]], str | Awaitable[str]] | None

    def toolbox(
        self,
        tools: Sequence[Tool],
        run: RunContext[Any],
        *,
        keeper: ToolResultStore,
        progress: Callable[[ToolCall, str], object],
        meter: UsageMeter,
    ) -> Toolbox: ...


class Run:
    """One run, from its call to its last provider."""

    def __init__(
        self, agent: RunServices, asked: RunRequest, emit: UpdateSink | None = None
    ) -> None:
        self._agent = agent
        self._asked = asked
        self._updates = RunUpdates(emit)
        self._streams = emit is not None
        self._session = asked.session or AgentSession()
        self._alone = asked.session is None
        self._records = agent.conversations.records_of(self._session, alone=self._alone)
        self._turn: Turn | None = None
        self._last: str | None = None
        """The id of the last message that the conversation held when the run began."""
        self._said: list[Message] = []
        """What model and tools said; first, if calls of an earlier run waited, that answer."""
        self._usages: list[Usage] = []
        self._meter = UsageMeter(asked.usage_limits)
        self._context = SessionContext(
            input_messages=[said for said in asked.messages if said.role is not Role.SYSTEM],
            session_id=self._session.session_id,
            options=asked.options,
        )
        if dropped := len(asked.messages) - len(self._context.input_messages):
            text = f"{dropped} system messages of the caller were left out"
            self._context.diagnostics.append(Diagnostic("caller", "before_run", text))

    async def perform(self) -> AgentResponse:
        """Go through the phases. The last one begins when this returns or raises."""
        agent, session, context = self._agent, self._session, self._context
        if session.is_inside:
            raise DeadlockError(f"a run of {session!r} waits for this one: use another session")
        if (on_busy := self._asked.options.on_busy) in {"interrupt", "steer"}:
            raise InvalidOptions(
                f"on_busy: a run waits for its turn or is refused; to {on_busy} send to "
                "session.conversation"
            )
        if on_busy == "reject" and session.run_lock.busy:
            raise ConversationBusy(f"{session!r} has a run already, and on_busy is 'reject'")
        leave = await session.run_lock.acquire()
        with session.inside():
            # It is there from the start: of a loop that closes, only such tasks finish.
            over = asyncio.Event()
            end = agent.background.start(self._end(over, leave), name="agent-context after_run")
            try:
                context.response = await self._respond()
            except asyncio.CancelledError:
                context.error = RunCancelled("the run was cancelled before its end")
                raise
            except BaseException as error:
                context.error = error
                raise
            finally:
                over.set()
                if self._asked.wait:
                    await asyncio.wait([end])
        if self._asked.wait:
            end.result()
        return context.response

    async def _respond(self) -> AgentResponse:
        agent, session, context = self._agent, self._session, self._context
        conversation = await agent.conversations.open(session, alone=self._alone)
        session.touch_request_hash(context.input_messages)
        context.prior_messages = before = await session.load_prior_messages()
        self._last = before[-1].id if before else None
        waiting = last_open_tool_calls(before)
        check_decisions(self._asked.approvals, waiting)
        self._rename_known(before)
        run = RunContext(
            deps=self._asked.deps,
            session=session,
            messages=context.input_messages,
            usages=self._meter.usages,
        )
        await self._instruct(run)
        await agent.chain.before(agent, session, context)
        tools = agent.requests.merge_tools(context, self._asked.tools)
        keeper = self._records or session.tool_results
        toolbox = agent.toolbox(
            tools, run, keeper=keeper, progress=self._updates.report, meter=self._meter
        )
        if waiting is not None:
            pending = await self._resume(conversation, toolbox, waiting)
            if pending:
                return self._response(pending=pending)
        if self._asked.output_type is not None:
            request_structured_output(self._asked.output_type, context, agent.requests.client)
        if self._said:  # the model's calls have run: it is not made to call once more
            choice = release_tool_choice(context.options.tool_choice)
            context.options = context.options.model_copy(update={"tool_choice": choice})
        request = await agent.requests.build(session, context, toolbox.tools, self._said)
        completion, pending = await self._take_turn(request, toolbox)
        if pending or self._asked.output_type is None:
            return self._response(completion, pending)
        return await self._parse_or_retry(self._asked.output_type, request, toolbox, completion)

    async def _instruct(self, run: RunContext[Any]) -> None:
        """Ask for the agent's instructions, if a function says them and the run has none."""
        instruct, options = self._agent.instruct, self._context.options
        if instruct is None or options.instructions is not None:
            return
        said = instruct(run)
        text = check_type("instructions", said if isinstance(said, str) else await said, str)
        self._context.options = options.model_copy(update={"instructions": text})

    async def _take_turn(
        self, request: Request, toolbox: Toolbox
    ) -> tuple[Completion, Sequence[ToolCall]]:
        """One turn; returns its last answer, and the calls in it that wait."""
        loop = ToolLoopRunner(
            toolbox,
            asyncio.get_running_loop(),
            max_rounds=self._agent.max_rounds,
            begin_round=self._meter.begin_round,
        )
        around = self._agent.middleware.around_models(self._meter.around)
        turn = self._turn = Turn(self._conversation(), loop, around)
        try:
            if self._streams:
                completion = await turn.streamed(request, self._updates.hear)
            else:
                completion = await turn.whole(request)
        except StoreError as error:
            completion = self._unkept_answer(error)
        self._said += [*loop.said, completion.message]
        self._usages += [*loop.usages, completion.usage]
        if any(offered.name == READ_RESULT_TOOL for offered in toolbox.tools):
            # Later runs offer it too: what was shortened is still in the history.
            self._session.state[HAS_TRUNCATED_RESULTS] = True
        if loop.pending:
            note_pending(self._session.state, completion.message, loop.pending, {})
        return completion, loop.pending

    def _unkept_answer(self, error: StoreError) -> Completion:
        """The answer that came and couldn't be kept, which the caller gets all the same.

        Raises the error if there is none.
        """
        if error.completion is None:
            raise error
        logger.warning("the answer of a run of %r was not kept: %s", self._session, error)
        text = f"the answer was not kept: {error}"
        self._context.diagnostics.append(Diagnostic("store", "store_answer", text, error))
        return cast("Completion", error.completion)

    async def _parse_or_retry(
        self, kind: type[Any], request: Request, toolbox: Toolbox, completion: Completion
    ) -> AgentResponse:
        """The response with its value; an answer that is none may be mended once."""
        try:
            return self._response(completion, value=parse_output(completion.message.text, kind))
        except InvalidOutput as complaint:
            again = retry_request(request, self._said, complaint)
        completion, pending = await self._take_turn(again, toolbox)
        if pending:
            return self._response(completion, pending)
        return self._response(completion, value=parse_output(completion.message.text, kind))

    def _conversation(self) -> ContextRef:
        if self._session.conversation is None:
            raise ConversationClosed(f"{self._session!r} has no conversation")
        return self._session.conversation

    def _rename_known(self, before: ConversationMessages) -> None:
        """Two messages never share an id: the same object said again is another message."""
        if not self._asked.ids:
            return
        known = before.holds(self._asked.ids)
        said = self._context.input_messages
        said[:] = [m.model_copy(update={"id": new_id()}) if m.id in known else m for m in said]

    async def _resume(
        self, conversation: ContextRef, toolbox: Toolbox, waiting: Message
    ) -> Sequence[ToolCall]:
        """Go on with the calls that an earlier run left open; returns those that still wait."""
        context, calls = self._context, waiting.tool_calls
        begun = self._records is not None and await self._records.calls_started(waiting)
        earlier = recall_decisions(self._session.state, waiting)
        decisions = {**earlier, **self._asked.approvals}
        given = [said for said in context.input_messages if said.role is Role.TOOL]
        if given:
            context.input_messages[:] = [m for m in context.input_messages if m not in given]
        elif not begun and (self._asked.approvals or not context.input_messages):
            self._updates.start_calls(calls)
            outcome = await self._run_pending_calls(conversation, toolbox, waiting, decisions)
            if outcome.pending:
                note_pending(self._session.state, waiting, outcome.pending, decisions)
                return outcome.pending
            given = list(outcome.results)
        results = close_calls(calls, given, begun=begun)
        await conversation.aask(Extend(results))
        forget_pending(self._session.state)
        self._said = [waiting, *results]
        self._updates.end_calls(results)
        return ()

    async def _run_pending_calls(
        self,
        conversation: ContextRef,
        toolbox: Toolbox,
        waiting: Message,
        decisions: Mapping[str, ApprovalDecision],
    ) -> ToolRunResult:
        """What becomes of calls that waited. That they are begun is kept before the first runs."""
        done: list[Message] = []
        records = self._records
        begin = None if records is None else partial(records.mark_calls_started, waiting)
        try:
            return await toolbox.resume(
                waiting.tool_calls, decisions, done=done.append, begin=begin
            )
        except asyncio.CancelledError:
            conversation.tell(Extend(close_calls(waiting.tool_calls, done, begun=True)))
            raise

    def _response(
        self,
        completion: Completion | None = None,
        pending: Sequence[ToolCall] = (),
        *,
        value: object = None,
    ) -> AgentResponse:
        usage = Usage.total(self._usages)
        if completion is not None:
            self._updates.tell(AgentUpdate(finish_reason=completion.finish_reason, usage=usage))
        return AgentResponse(
            messages=tuple(self._said),
            completion=completion,
            pending=tuple(pending),
            value=value,
            session_id=self._session.session_id,
            usage=usage,
            diagnostics=self._context.diagnostics,
        )

    async def _end(self, over: asyncio.Event, leave: Callable[[], None]) -> None:
        """The last phase: each provider that was asked before is told, and the next run may go."""
        session, context = self._session, self._context
        try:
            await over.wait()
            if self._turn is not None:
                await self._turn.over()
            if context.error is not None:
                context.partial_response = await self._load_partial()
            await self._after()
        finally:
            leave()
            if self._alone and session.conversation is not None:
                session.conversation.actor_ref.stop(block=False)

    async def _after(self) -> None:
        try:
            await self._agent.chain.after(self._agent, self._session, self._context)
        finally:
            if self._records is not None and self._session.conversation is not None:
                self._context.diagnostics += await self._records.save_state()

    async def _load_partial(self) -> AgentResponse | None:
        """What the conversation kept of a run that failed; None if that is nothing."""
        try:
            stored = await self._session.load_prior_messages()
        except AgentContextError as error:
            logger.warning("%r can't say what it kept of a run: %s", self._session, error)
            return None
        known = {self._last, *(message.id for message in self._context.input_messages)}
        said: list[Message] = []
        for message in reversed(stored):
            if message.id in known:
                break
            said.insert(0, message)
        if not said:
            return None
        return AgentResponse(messages=tuple(said), session_id=self._session.session_id)


_NOBODY_ALLOWED = "The call was not carried out: nobody allowed it, and the conversation went on."
_CUT_SHORT = "[interrupted] The run was cut short: whether the call had an effect is not known."


def check_decisions(decisions: Mapping[str, object], answer: Message | None) -> None:
    """Refuse decisions on calls that don't wait. Raises `InvalidOptions`."""
    waiting = [] if answer is None else distinct_ids(answer.tool_calls)
    if unknown := [call_id for call_id in decisions if call_id not in waiting]:
        waits = f"these wait: {', '.join(waiting)}" if waiting else "none does"
        raise InvalidOptions(f"approvals: no call {', '.join(map(repr, unknown))} waits; {waits}")
    for call_id, decision in decisions.items():
        if not isinstance(decision, bool | str | Message | Always):
            raise InvalidOptions(
                f"approvals[{call_id!r}]: True, False, Always, a text that says why not, or a "
                f"Message that is the result, not {type(decision).__name__}"
            )


def close_calls(
    calls: Sequence[ToolCall], results: Sequence[Message], *, begun: bool = False
) -> list[Message]:
    """A result for each call: the one that there is, or words that say that there is none."""
    return checkpoint.complete_results(calls, results, _CUT_SHORT if begun else _NOBODY_ALLOWED)
