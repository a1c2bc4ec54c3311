"""An agent: a model with instructions, tools and context providers, whose runs are turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, cast, overload

from typing_extensions import TypeVar

from agent_context._installed_backends import resolve_backend
from agent_context._validation import check_type, explain_foreign_names
from agent_context.agent.background import BackgroundTasks
from agent_context.agent.conversations import ConversationSource, SessionConversations
from agent_context.agent.middleware import Middleware, MiddlewareChain
from agent_context.agent.request_builder import AnyCounter, RequestBuilder
from agent_context.agent.run import HAS_TRUNCATED_RESULTS, Run
from agent_context.agent.run_input import (
    FOREIGN_NAMES,
    RunInput,
    ToolsInput,
    to_messages,
    to_options,
    to_tools,
    with_instructions,
)
from agent_context.agent.run_request import RunRequest
from agent_context.agent.stream import AgentStream, UpdateSink
from agent_context.agent.usage_limits import UsageLimits, UsageMeter
from agent_context.backend import ContextBackend
from agent_context.compression.strategy import Strategy
from agent_context.errors import InvalidOptions, ToolError, UsageError
from agent_context.messages import ToolCall
from agent_context.options import SendOptions
from agent_context.providers.chain import (
    AfterRunOrder,
    OnProviderError,
    ProviderChain,
    loads_history,
)
from agent_context.providers.compression import AnyStrategy
from agent_context.providers.history import InMemoryHistoryProvider
from agent_context.providers.provider import ContextProvider
from agent_context.providers.response import AgentResponse
from agent_context.sessions.session import AgentSession
from agent_context.stores.store import Store
from agent_context.tools import (
    ApprovalCallback,
    ApprovalDecision,
    ApprovalPolicy,
    FunctionTool,
    Limits,
    Tool,
    Toolbox,
    ToolResultStore,
    tool,
)
from agent_context.tools.approval import check_approval
from agent_context.tools.merge import ToolConflict
from agent_context.tools.tool import RunContext

__all__ = ["Agent"]


T = TypeVar("T")
V = TypeVar("V", default=Any)
Instructions = Callable[[RunContext[Any]], str | Awaitable[str]]
"""Says what the model should be and know in a run."""


class Agent:
    """A model with instructions, tools and context providers.

    A run is one turn of the session's conversation. It never overlaps with another run of its
    session; runs of different sessions know nothing of each other.

    Args:
        client: The model, or the name of an installed backend: `deepseek`, `openai:gpt-5.4`.
        instructions: What the model should be and know, or a function of the run that says it;
            a run may have its own instead.
        name: How logs and other agents call it.
        tools: Tools, or functions to make them of.
        context_providers: What stands around each run, in this order. Without one that loads
            the history, the conversation's own comes first.
        options: What holds for every run that doesn't say otherwise.
        compression: How a conversation shrinks what it holds when a request doesn't fit.
        compression_strategy: How a single request is shrunk, while the conversation stays as
            it is, when `token_counter` finds it to be more than the model's input budget.
        token_counter: Counts for `compression_strategy`, which is never used without.
        approve: Decides on calls of tools that need approval; without it the run ends with
            `pending` calls.
        limits: What tool calls may take.
        max_rounds: Rounds of tool calls, after which the model has to answer.
        middleware: What stands around runs, calls of the model and calls of tools; of several the
            first is the outermost.
        usage_limits: What a run may use, if it doesn't say otherwise.
        description: What it is for, to whoever may call it: see `as_tool`.
        tool_conflict: Whether a tool whose name is taken is left out, or an error.
        on_provider_error: Whether a provider that fails is noted and left out, or ends the run.
        provider_timeout: Seconds that one call of a provider may take.
        post_order: Which provider looks first at a run that has ended: the last, or the first.
        store: Keeps what is said in sessions, under their ids: a session with an id that the store
            knows goes on where it was.
        host: The same, for programs that have a host. It was made with this client, and says how
            its conversations compress.
    """

    @explain_foreign_names(FOREIGN_NAMES)
    def __init__(  # noqa: PLR0913 - an agent is described in one place
        self,
        client: ContextBackend | str,
        instructions: str | Instructions | None = None,
        *,
        name: str | None = None,
        tools: ToolsInput = (),
        context_providers: Iterable[ContextProvider] = (),
        options: SendOptions | Mapping[str, Any] | None = None,
        compression: Strategy | None = None,
        compression_strategy: AnyStrategy | None = None,
        token_counter: AnyCounter | None = None,
        approve: ApprovalCallback | None = None,
        middleware: Iterable[Middleware] = (),
        usage_limits: UsageLimits | None = None,
        description: str = "",
        limits: Limits = Limits(),  # noqa: B008 - frozen
        max_rounds: int = 20,
        tool_conflict: ToolConflict = "skip",
        on_provider_error: OnProviderError = "isolate",
        provider_timeout: float = 60.0,
        post_order: AfterRunOrder = "reverse",
        store: Store | None = None,
        host: ConversationSource | None = None,
    ) -> None:
        client, usual = resolve_backend(client, to_options(options))
        self.client = check_type("client", client, ContextBackend)
        self.name, self.description = name, description
        text, self.instruct = _split_instructions(instructions)
        self.options = with_instructions(usual or SendOptions(), text)
        self.context_providers: Sequence[ContextProvider] = tuple(context_providers)
        providers = _add_default_history(self.context_providers)
        self.chain = ProviderChain(
            providers, on_error=on_provider_error, patience=provider_timeout, post_order=post_order
        )
        self.requests = RequestBuilder(
            client=client,
            tools=to_tools(tools),
            tool_conflict=tool_conflict,
            strategy=compression_strategy,
            counter=token_counter,
        )
        self.background = BackgroundTasks()
        self.max_rounds, self.usage_limits = max_rounds, usage_limits
        self.conversations = SessionConversations(
            client, self.options, compression=compression, store=store, host=host
        )
        self._waits = on_provider_error == "raise"
        self._approve, self._limits = check_approval(approve), limits
        self.middleware = MiddlewareChain(middleware)

    def __repr__(self) -> str:
        return f"<agent {self.name or 'without a name'}>"

    @property
    def instructions(self) -> str | None:
        """What the model is told in every run that has no instructions of its own."""
        return self.options.instructions

    @property
    def tools(self) -> Sequence[Tool]:
        """The agent's own tools."""
        return self.requests.tools

    def create_session(self, session_id: str | None = None) -> AgentSession:
        """A session for runs that belong together.

        With a store a conversation has one session, whoever asks for it and however often, as long
        as somebody holds it.
        """
        return self.conversations.create_session(session_id)

    @overload
    def run(
        self,
        messages: RunInput | None = (),
        *,
        stream: Literal[False] = False,
        session: AgentSession | None = None,
        options: SendOptions | Mapping[str, Any] | None = None,
        instructions: str | None = None,
        tools: ToolsInput = (),
        approvals: Mapping[str, ApprovalDecision] | None = None,
        output_type: type[V] | None = None,
        deps: object = None,
        usage_limits: UsageLimits | None = None,
        wait_for_persistence: bool = False,
    ) -> Coroutine[Any, Any, AgentResponse[V]]: ...

    @overload
    def run(
        self,
        messages: RunInput | None = (),
        *,
        stream: Literal[True],
        session: AgentSession | None = None,
        options: SendOptions | Mapping[str, Any] | None = None,
        instructions: str | None = None,
        tools: ToolsInput = (),
        approvals: Mapping[str, ApprovalDecision] | None = None,
        output_type: type[V] | None = None,
        deps: object = None,
        usage_limits: UsageLimits | None = None,
        wait_for_persistence: bool = False,
    ) -> AgentStream[V]: ...

    @explain_foreign_names(FOREIGN_NAMES)
    def run(  # noqa: PLR0913 - a run is described in one place
        self,
        messages: RunInput | None = (),
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        options: SendOptions | Mapping[str, Any] | None = None,
        instructions: str | None = None,
        tools: ToolsInput = (),
        approvals: Mapping[str, ApprovalDecision] | None = None,
        output_type: type[V] | None = None,
        deps: object = None,
        usage_limits: UsageLimits | None = None,
        wait_for_persistence: bool = False,
    ) -> Coroutine[Any, Any, AgentResponse[V]] | AgentStream[V]:
        """Have the model answer, calling tools as often as it wants.

        Await it for the `AgentResponse`; with `stream=True` iterate it for updates. It raises what
        ends it early. Providers look at it after its end; the session's next run waits for them.

        Args:
            messages: What is said. System messages are left out: use `instructions`.
            stream: Whether to hear of the answer while it arrives.
            session: What was said before; without one the run stands alone.
            options: Laid over the agent's.
            instructions: In the place of the agent's; those of providers follow either.
            tools: For this run, behind the agent's own.
            approvals: Decisions on calls that an earlier run left pending, by their ids: True,
                False, or a text that says why not.
            output_type: Have the answer be a value of this type; see `AgentResponse.value`.
            deps: What tools and instructions get as `RunContext.deps`.
            usage_limits: What the run may use, in the place of the agent's.
            wait_for_persistence: Return only when the last provider has had its turn.
        """
        chosen = with_instructions(to_options(options).merged_over(self.options), instructions)
        said = to_messages(messages)
        asked = RunRequest(
            agent=self.name,
            messages=said.messages,
            ids=said.known_ids,
            session=session,
            options=chosen,
            tools=to_tools(tools),
            approvals=approvals or {},
            output_type=output_type,
            deps=deps,
            usage_limits=usage_limits or self.usage_limits,
            wait=wait_for_persistence or self._waits,
        )
        return AgentStream(partial(self._perform, asked)) if stream else self._perform(asked)

    async def _perform(self, asked: RunRequest, emit: UpdateSink | None = None) -> AgentResponse:
        async def perform(asked: RunRequest) -> AgentResponse:
            return await Run(self, asked, emit).perform()

        return await self.middleware.run(asked, perform)

    def run_sync(
        self,
        messages: RunInput | None = (),
        *,
        output_type: type[V] | None = None,
        **options: Any,  # noqa: ANN401 - run's
    ) -> AgentResponse[V]:
        """`run`, for programs without an event loop. Its arguments are those of `run`."""
        run = cast(
            "Coroutine[Any, Any, AgentResponse[V]]",
            self.run(messages, output_type=output_type, **options),
        )
        return _run(run, "run_sync", "await run()")

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        approval: ApprovalPolicy = "never",
    ) -> FunctionTool:
        """A tool that has this agent answer, for another agent.

        Each call is a run of its own, without a session, with the `deps` of the run that calls it.
        It is called by the agent's `name` and `description` unless others are given. Raises
        `InvalidOptions` if there is no name, or none that a model can be told.
        """

        async def ask(run: RunContext[Any], request: str) -> str:
            response = await self.run(request, deps=run.deps)
            if response.pending:
                waiting = ", ".join(call.name for call in response.pending)
                raise ToolError(f"it can't go on: somebody must allow its calls of {waiting} first")
            return response.text

        if (called := name or self.name) is None:
            raise InvalidOptions("as_tool: the agent has no name: give one, as_tool(name=…)")
        told = description or self.description or "Ask this assistant."
        return tool(ask, name=called, description=told, approval=approval)

    async def drain(self, session: AgentSession | None = None) -> None:
        """Wait until the runs so far, of one session or all, have ended for providers too."""
        if session is not None:
            await session.run_lock.wait_idle()
        else:
            await self.background.wait_idle()

    async def close(self, *, timeout: float = 30.0) -> None:
        """`drain`, then end the conversations of all sessions and wait until they are kept.

        Call it before `store.close()`; a run after it raises `UsageError`. Conversations of a host
        are the host's. Raises `TimeoutError` after so many seconds.
        """
        async with asyncio.timeout(timeout):
            await self.drain()
            await self.conversations.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _run(self.close(), "with", "async with")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def toolbox(
        self,
        tools: Sequence[Tool],
        run: RunContext[Any],
        *,
        keeper: ToolResultStore,
        progress: Callable[[ToolCall, str], object],
        meter: UsageMeter,
    ) -> Toolbox:
        """What runs the calls of a run."""
        return Toolbox(
            tools,
            limits=self._limits,
            approve=self._approve,
            keeper=keeper,
            reader=run.session is not None and HAS_TRUNCATED_RESULTS in run.session.state,
            conversation_id=None if run.session is None else run.session.session_id,
            progress=progress,
            around=self.middleware.around_tools((meter.around_tool,)),
            run=run,
        )


def _run(work: Coroutine[Any, Any, T], name: str, instead: str) -> T:
    """What `work` returns, for programs without an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise UsageError(f"{name} was used where an event loop runs: {instead} is for there")


def _split_instructions(
    said: str | Instructions | None,
) -> tuple[str | None, Instructions | None]:
    """The instructions as a text, or as what makes them."""
    return (said, None) if isinstance(said, str) else (None, said)


def _add_default_history(providers: Sequence[ContextProvider]) -> Sequence[ContextProvider]:
    """The providers, with the conversation's own history first if none of them loads one."""
    if any(map(loads_history, providers)):
        return providers
    return (InMemoryHistoryProvider("conversation"), *providers)


ContextBackend.agent_type = Agent
