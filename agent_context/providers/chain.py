"""The providers of an agent, one after the other: before a run and after it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Literal, get_args

from agent_context._validation import check_type
from agent_context.errors import InvalidOptions
from agent_context.messages import Role
from agent_context.providers.compression import CompressionProvider
from agent_context.providers.context import SessionContext
from agent_context.providers.history import HistoryProvider
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.providers.response import Diagnostic
from agent_context.sessions.session import AgentSession

__all__ = ["AfterRunOrder", "OnProviderError", "ProviderChain", "loads_history"]

logger = logging.getLogger(__name__)

OnProviderError = Literal["isolate", "raise"]
"""What a provider's exception does: it is noted and the run goes on, or it ends the run."""

AfterRunOrder = Literal["reverse", "forward"]
"""Which provider looks first at a run that has ended: the last one, or the first."""

_PATIENCE: Final = 60.0


class ProviderChain:
    """The providers of one agent. It keeps nothing of a run but what it writes into its context."""

    def __init__(
        self,
        providers: Iterable[ContextProvider],
        *,
        on_error: OnProviderError = "isolate",
        patience: float = _PATIENCE,
        post_order: AfterRunOrder = "reverse",
    ) -> None:
        """`patience` is what one call of a provider may take, in seconds.

        Raises `ValueError` for two providers with one `source_id`, or two that load the history,
        and `InvalidOptions` for a word that is none of these and a history that can't be rewritten.
        """
        if post_order not in get_args(AfterRunOrder):
            raise InvalidOptions(f"post_order is 'reverse' or 'forward', not {post_order!r}")
        if on_error not in get_args(OnProviderError):
            raise InvalidOptions(f"on_error is 'isolate' or 'raise', not {on_error!r}")
        self.providers: Sequence[ContextProvider] = tuple(providers)
        self._on_error = on_error
        self._patience = patience
        self._afterwards = self.providers[:: -1 if post_order == "reverse" else 1]
        _check(self.providers)

    async def before(
        self, agent: AgentLike, session: AgentSession, context: SessionContext
    ) -> None:
        """Call each `before_run` in order. What a provider added before it failed is taken back."""
        for provider in self.providers:
            before = context.snapshot()
            context.invoked_sources.append(provider.source_id)
            try:
                await self._call(provider.before_run, agent, session, context, provider)
            except Exception as error:
                context.restore(before)
                self._on_failure(provider, "before_run", error, context)
                if self._on_error == "raise":
                    raise
            except BaseException:
                context.restore(before)
                raise
        _drop_system_messages(context)

    async def after(self, agent: AgentLike, session: AgentSession, context: SessionContext) -> None:
        """Call each `after_run` whose `before_run` was called, in `post_order`, once each.

        With `on_error="raise"` it raises the first failure, when all have been called.
        """
        failures: list[BaseException] = []
        for provider in self._afterwards:
            if provider.source_id not in context.invoked_sources:
                continue
            try:
                await self._call(provider.after_run, agent, session, context, provider)
            except (Exception, asyncio.CancelledError) as error:
                if _is_cancelled():
                    raise
                self._on_failure(provider, "after_run", error, context)
                failures.append(error)
        if failures and self._on_error == "raise":
            raise failures[0]

    async def _call(
        self,
        hook: Callable[..., Awaitable[None]],
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        provider: ContextProvider,
    ) -> None:
        state = session.provider_state(provider.source_id)
        limit = asyncio.timeout(self._patience)
        try:
            async with limit:
                await hook(agent=agent, session=session, context=context, state=state)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise TimeoutError(f"no end within {self._patience} seconds") from error

    def _on_failure(
        self, provider: ContextProvider, phase: str, error: BaseException, context: SessionContext
    ) -> None:
        context.diagnostics.append(Diagnostic(provider.source_id, phase, _describe(error), error))
        logger.warning(
            "provider %s: %s failed: %s", provider.name, phase, _describe(error), exc_info=error
        )


def _check(providers: Sequence[ContextProvider]) -> None:
    for provider in providers:
        check_type("context_providers", provider, ContextProvider)
    twice = [name for name, n in Counter(p.source_id for p in providers).items() if n > 1]
    if twice:
        raise ValueError(
            f"context_providers: {', '.join(twice)}: more than one provider has this source_id, "
            "under which each keeps its state: give them ids of their own"
        )
    loaders = [provider.source_id for provider in providers if loads_history(provider)]
    if len(loaders) > 1:
        raise ValueError(
            f"context_providers: {', '.join(loaders)}: only one may load the history, or the model "
            "would read it twice: set load_messages=False on the others"
        )
    _check_rewriting(providers)


def _check_rewriting(providers: Sequence[ContextProvider]) -> None:
    rewriting = [p for p in providers if isinstance(p, CompressionProvider) and p.rewrite]
    histories = [p for p in providers if isinstance(p, HistoryProvider) and p.load_messages]
    if rewriting and not all(history.can_replace for history in histories):
        raise InvalidOptions(
            f"{rewriting[0].name}: rewrite: {histories[0].name} can't replace what it keeps: if it "
            "is the conversation's own, give the agent `compression`, else a replace_messages to "
            f"{type(histories[0]).__name__}"
        )


def loads_history(provider: ContextProvider) -> bool:
    return isinstance(provider, HistoryProvider) and provider.load_messages


def _drop_system_messages(context: SessionContext) -> None:
    """Instructions have one place, the system message that the agent writes."""
    for source, messages in list(context.context_messages.items()):
        if source == context.conversation_source:
            continue
        kept = [message for message in messages if message.role is not Role.SYSTEM]
        if dropped := len(messages) - len(kept):
            context.context_messages[source] = kept
            context.diagnostics.append(
                Diagnostic(source, "before_run", f"{dropped} system messages were left out")
            )


def _is_cancelled() -> bool:
    """Whether it is this task that was cancelled, and not what a provider waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
