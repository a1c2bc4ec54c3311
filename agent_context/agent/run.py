"""One run of an agent: providers before it, one turn of the conversation, providers after it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from agent_context.agent.calls import check_decisions, closed, open_answer
from agent_context.agent.request import Requests
from agent_context.agent.steadfast import Background
from agent_context.agent.turn import Request, Rounds, Turn
from agent_context.agent.typed import ask_for, asked_again
from agent_context.agent.updates import AgentUpdate, Emit
from agent_context.errors import (
    AgentContextError,
    ConversationBusy,
    ConversationClosed,
    InvalidOptions,
    InvalidOutput,
    RunCancelled,
    WouldDeadlock,
)
from agent_context.messages import Completion, Message, Role, ToolCall, Usage, new_id
from agent_context.options import SendOptions
from agent_context.output import parse_output
from agent_context.protocol import Extend
from agent_context.providers.chain import Chain
from agent_context.providers.context import SessionContext
from agent_context.providers.response import AgentResponse, Diagnostic
from agent_context.ref import ContextRef
from agent_context.rounds import Bound
from agent_context.sessions.lazily import SaidBefore
from agent_context.sessions.session import AgentSession
from agent_context.tools import Decision, Tool, Toolbox
from agent_context.tools.keeping import READER

__all__ = ["SHORTENED", "Asked", "Conducts", "Run"]

logger = logging.getLogger(__name__)

SHORTENED: Final = "shortened_tool_results"
"""In a session's state: some tool result was cut, so the tool that reads on is offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a run was asked for."""

    messages: Sequence[Message] = ()
    ids: frozenset[str] = frozenset()
    """Of those messages that the caller made, who may have said them before."""
    session: AgentSession | None = None
    options: SendOptions = field(default_factory=SendOptions)
    tools: Sequence[Tool] = ()
    approvals: Mapping[str, Decision] = field(default_factory=dict[str, Decision])
    output_type: type[Any] | None = None
    wait: bool = False
    """Whether the run ends for its caller only when the last provider has had its turn."""


class Conducts(Protocol):
    """What a run needs of its agent."""

    chain: Chain
    requests: Requests
    background: Background
    max_rounds: int

    async def conversation_of(self, session: AgentSession, *, alone: bool) -> ContextRef: ...

    async def remember(self, session: AgentSession) -> None: ...

    def toolbox(self, tools: Sequence[Tool], session: AgentSession, *, alone: bool) -> Toolbox: ...


class Run:
    """One run, from its call to its last provider."""

    def __init__(self, agent: Conducts, asked: Asked, emit: Emit | None = None) -> None:
        self._agent = agent
        self._asked = asked
        self._emit = emit
        self._session = asked.session or AgentSession()
        self._alone = asked.session is None
        self._turn: Turn | None = None
        self._last: str | None = None
        """The id of the last message that the conversation held when the run began."""
        self._said: list[Message] = []
        """What model and tools said; first, if calls of an earlier run waited, that answer."""
        self._usages: list[Usage] = []
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
            raise WouldDeadlock(f"a run of {session!r} waits for this one: use another session")
        if (on_busy := self._asked.options.on_busy) in {"interrupt", "steer"}:
            raise InvalidOptions(
                f"on_busy: a run waits for its turn or is refused; to {on_busy} send to "
                "session.conversation"
            )
        if on_busy == "reject" and session.runs.busy:
            raise ConversationBusy(f"{session!r} has a run already, and on_busy is 'reject'")
        leave = await session.runs.enter()
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
        conversation = await agent.conversation_of(session, alone=self._alone)
        session.touch_request_hash(context.input_messages)
        context.said_before = before = await session.said_before()
        self._last = before[-1].id if before else None
        waiting = open_answer(before)
        check_decisions(self._asked.approvals, waiting)
        self._rename_known(before)
        await agent.chain.before(agent, session, context)
        tools = agent.requests.tools_for(context, self._asked.tools)
        toolbox = agent.toolbox(tools, session, alone=self._alone)
        if waiting is not None:
            pending = await self._resume(conversation, toolbox, waiting)
            if pending:
                return self._response(pending=pending)
        if self._asked.output_type is not None:
            ask_for(self._asked.output_type, context, agent.requests.client)
        request = await agent.requests.made(session, context, toolbox.tools, self._said)
        completion, pending = await self._take_turn(request, toolbox)
        if pending or self._asked.output_type is None:
            return self._response(completion, pending)
        return await self._typed(self._asked.output_type, request, toolbox, completion)

    async def _take_turn(
        self, request: Request, toolbox: Toolbox
    ) -> tuple[Completion, Sequence[ToolCall]]:
        """One turn; returns its last answer, and the calls in it that wait."""
        turn = self._turn = Turn(self._conversation())
        bound = Bound(toolbox, asyncio.get_running_loop(), max_rounds=self._agent.max_rounds)
        rounds = Rounds(bound)
        if self._emit is None:
            completion = await turn.whole(request, rounds)
        else:
            completion = await turn.streamed(request, rounds, self._emit)
        self._said += [*rounds.said, completion.message]
        self._usages += [*rounds.usages, completion.usage]
        if any(offered.name == READER for offered in toolbox.tools):
            # Later runs offer it too: what was shortened is still in the history.
            self._session.state[SHORTENED] = True
        return completion, bound.pending

    async def _typed(
        self, kind: type[Any], request: Request, toolbox: Toolbox, completion: Completion
    ) -> AgentResponse:
        """The response with its value; an answer that is none may be mended once."""
        try:
            return self._response(completion, value=parse_output(completion.message.text, kind))
        except InvalidOutput as complaint:
            again = asked_again(request, self._said, complaint)
        completion, pending = await self._take_turn(again, toolbox)
        if pending:
            return self._response(completion, pending)
        return self._response(completion, value=parse_output(completion.message.text, kind))

    def _conversation(self) -> ContextRef:
        if self._session.conversation is None:
            raise ConversationClosed(f"{self._session!r} has no conversation")
        return self._session.conversation

    def _rename_known(self, before: SaidBefore) -> None:
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
        given = [said for said in context.input_messages if said.role is Role.TOOL]
        if given:
            context.input_messages[:] = [m for m in context.input_messages if m not in given]
        elif self._asked.approvals or not context.input_messages:
            done: list[Message] = []
            try:
                outcome = await toolbox.resume(calls, self._asked.approvals, done=done.append)
            except asyncio.CancelledError:
                conversation.tell(Extend(closed(calls, done, begun=True)))
                raise
            if outcome.pending:
                return outcome.pending
            given = list(outcome.results)
        results = closed(calls, given)
        await conversation.aask(Extend(results))
        self._said = [waiting, *results]
        if self._emit is not None:
            self._emit(AgentUpdate(tool_calls=calls, results=results))
        return ()

    def _response(
        self,
        completion: Completion | None = None,
        pending: Sequence[ToolCall] = (),
        *,
        value: object = None,
    ) -> AgentResponse:
        usage = Usage.total(self._usages)
        if self._emit is not None and completion is not None:
            self._emit(AgentUpdate(finish_reason=completion.finish_reason, usage=usage))
        return AgentResponse(
            messages=tuple(self._said),
            completion=completion,
            pending=tuple(pending),
            value=value,
            session_id=self._session.session_id,
            usage=usage,
            diagnostics=tuple(self._context.diagnostics),
        )

    async def _end(self, over: asyncio.Event, leave: Callable[[], None]) -> None:
        """The last phase: each provider that was asked before is told, and the next run may go."""
        session, context = self._session, self._context
        try:
            await over.wait()
            if self._turn is not None:
                await self._turn.over()
            if context.error is not None:
                context.partial = await self._left()
            await self._after()
        finally:
            leave()
            if self._alone and session.conversation is not None:
                session.conversation.actor_ref.stop(block=False)

    async def _after(self) -> None:
        try:
            await self._agent.chain.after(self._agent, self._session, self._context)
        finally:
            if not self._alone and self._session.conversation is not None:
                await self._agent.remember(self._session)

    async def _left(self) -> AgentResponse | None:
        """What the conversation kept of a run that failed; None if that is nothing."""
        try:
            stored = await self._session.said_before()
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
