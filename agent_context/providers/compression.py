"""Making smaller what goes out in one run, and leaving alone what is stored."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, cast

from agent_context._actor.compression_plan import plan_compression
from agent_context._actor.model_client import ModelClient
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zones
from agent_context._runtime import Reply, io_loop
from agent_context._validation import check_type
from agent_context.backend import ContextBackend
from agent_context.compression.executor import CompressionResult, plan_step
from agent_context.compression.strategy import PlanningView, Strategy
from agent_context.errors import InvalidOptions
from agent_context.messages import Message, new_id
from agent_context.options import SendOptions
from agent_context.providers.context import SessionContext
from agent_context.providers.history import HistoryProvider
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.sessions.lazy_messages import as_assistant
from agent_context.sessions.session import AgentSession
from agent_context.tools.offload import in_thread

__all__ = [
    "AnyStrategy",
    "CompressionProvider",
    "ModelTokenCounter",
    "TokenCounter",
    "check_strategy",
    "compress",
    "input_budget",
]


class TokenCounter(Protocol):
    """Counts the tokens of messages."""

    def count_tokens(self, messages: Sequence[Message], /) -> int: ...


class ModelTokenCounter:
    """Counts as the library does for a model: by its vocabulary, with what its template adds."""

    def __init__(self, client: ContextBackend, model: str | None = None) -> None:
        self._client = client
        self._model = model

    def count_tokens(self, messages: Sequence[Message], /) -> int:
        """Tokens of these messages in a request."""
        facts = self._client.model_facts(self._model)
        return sum(self._client.estimate_tokens(message, facts) for message in messages)


class RequestCompressor(Protocol):
    def compress(
        self, messages: list[Message], budget: int, counter: Any, /
    ) -> Sequence[Message] | Awaitable[Sequence[Message]]: ...


_Function = Callable[[list[Message], int, Any], Sequence[Message] | Awaitable[Sequence[Message]]]

AnyStrategy = Strategy | RequestCompressor | _Function
"""A strategy of conversations; or what returns a shorter list, in the place of the one it is given.

The second kind is called with a list of its own, a budget in tokens, and the counter.
"""


def check_strategy(name: str, strategy: AnyStrategy) -> AnyStrategy:
    """`strategy`, if it is one. Raises `InvalidOptions` that names the argument."""
    if isinstance(strategy, Strategy) or callable(getattr(strategy, "compress", strategy)):
        return strategy
    raise InvalidOptions(
        f"{name}: a Strategy, or what compresses a list, not {type(strategy).__name__}"
    )


def input_budget(backend: ContextBackend, options: SendOptions) -> int | None:
    """Tokens of input that leave room for the answer; None if the window isn't known."""
    facts = backend.model_facts(options.model)
    window = options.context_window or facts.context_window
    return max(0, window - (options.max_tokens or facts.max_output)) if window else None


async def compress(
    strategy: AnyStrategy,
    messages: Sequence[Message],
    *,
    budget: int,
    counter: object,
    backend: ContextBackend,
    options: SendOptions,
) -> list[Message]:
    """What `strategy` makes of `messages`: the same if there is nothing to do."""
    if isinstance(strategy, Strategy):
        return await _compress_by_strategy(strategy, messages, budget, backend, options)
    function = cast("_Function", getattr(strategy, "compress", strategy))
    work = partial(function, list(messages), budget, counter)
    result: object = work() if inspect.iscoroutinefunction(function) else await in_thread(work)
    return _check_messages(await result if inspect.isawaitable(result) else result)


def _check_messages(result: object) -> list[Message]:
    """What a strategy returned. Raises `InvalidOptions` unless that is messages."""
    items = list(cast("Iterable[object]", result)) if isinstance(result, Iterable) else [result]
    return [check_type("strategy: an item", cast("Message", item), Message) for item in items]


async def _compress_by_strategy(
    strategy: Strategy,
    messages: Sequence[Message],
    budget: int,
    backend: ContextBackend,
    options: SendOptions,
) -> list[Message]:
    zones = Zones(incremental=PersistentVector.of(map(from_message, messages)))
    model = ModelClient(backend, new_id()).bind(options)
    count = model.count
    fits = sum(map(count, zones)) <= budget
    plan = await plan_step(strategy, PlanningView(zones, count, budget))
    if plan is None or (plan.summary is not None and fits):
        return list(messages)  # a summary costs a call: not while there is room
    compaction = await _run_on_io(lambda: plan_compression(model, strategy, None, zones, budget))
    smaller = None if compaction is None else compaction.apply_to(zones)
    if smaller is None:
        return list(messages)
    return [as_assistant(record) for record in smaller]


async def _run_on_io(
    work: Callable[[], Awaitable[CompressionResult | None]],
) -> CompressionResult | None:
    """Do it on the I/O loop, where backends are called."""
    reply: Reply[CompressionResult | None] = Reply()

    async def run() -> None:
        try:
            reply.set(await work())
        except BaseException:  # noqa: BLE001 - it belongs to whoever waits
            reply.set_exception()

    job = io_loop().spawn(run)
    try:
        return await reply
    finally:
        job.cancel()


class CompressionProvider(ContextProvider):
    """Puts a shorter form in the place of all that the providers before it gave.

    So its place among the providers says what it compresses: behind the one that loads the history
    it is the history. What is stored stays as it is, unless it is to `rewrite` that.
    """

    kind = "compression"

    def __init__(
        self,
        strategy: AnyStrategy,
        *,
        budget: int | None = None,
        counter: TokenCounter | None = None,
        rewrite: bool = False,
        source_id: str = "compression",
    ) -> None:
        """`budget` is in tokens; None takes what the model has for input.

        A strategy that asks the model for a summary does so only past the budget, the others
        always. With `rewrite` it compresses what the loading history gave, and nothing else, and
        has the history keep the outcome: so a summary is paid for once, and not in each run. That
        needs a history that isn't the conversation's own, which its agent's `compression` makes
        smaller.
        """
        super().__init__(source_id)
        self.strategy = check_strategy("strategy", strategy)
        self.budget = budget
        self.counter = counter
        self.rewrite = rewrite

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Compress what was added so far, or the history alone and for good."""
        del state
        source = context.history_source
        if not self.rewrite:
            before = context.get_messages()
            if (after := await self._compress(before, agent, context)) is not None:
                context.replace_messages(self, after)
        elif source in context.context_messages:
            before = context.get_messages(sources=(source,))
            if (after := await self._compress(before, agent, context)) is not None:
                context.shorten_history(after)
                history = _history_of(agent, source)
                await _rewrite_history(
                    history, after, len(before), context, session.provider_state(source)
                )

    async def _compress(
        self, before: list[Message], agent: AgentLike, context: SessionContext
    ) -> list[Message] | None:
        """What the strategy makes of messages; None if they stay as they are."""
        if not before:
            return None
        backend = agent.client
        budget = self.budget
        if budget is None:
            budget = input_budget(backend, context.options) or 0
        after = await compress(
            self.strategy,
            before,
            budget=budget,
            counter=self.counter,
            backend=backend,
            options=context.options,
        )
        return None if after == before else after


def _history_of(agent: AgentLike, source: str) -> HistoryProvider:
    histories = (each for each in agent.context_providers if isinstance(each, HistoryProvider))
    return next(each for each in histories if each.source_id == source)


async def _rewrite_history(
    history: HistoryProvider,
    messages: list[Message],
    instead_of: int,
    context: SessionContext,
    state: dict[str, Any],
) -> None:
    """Have a history keep messages, unless somebody else has added some since it was loaded."""
    if await history.count(context.session_id, state=state) == instead_of:
        await history.replace_messages(context.session_id, messages, state=state)
