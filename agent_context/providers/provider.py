"""What may stand around a run: a context provider adds to it before, and looks at it after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from agent_context.backend import ContextBackend
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.providers.context import ContextResult, SessionContext
from agent_context.providers.response import AgentResponse
from agent_context.sessions.session import AgentSession
from agent_context.tools import Tool

__all__ = [
    "AgentLike",
    "BaseContextProvider",
    "ContextProvider",
    "ContextResult",
    "SessionContext",
]


class AgentLike(Protocol):
    """What a provider may look at of the agent whose run it stands around."""

    @property
    def name(self) -> str | None: ...

    @property
    def client(self) -> ContextBackend: ...

    @property
    def instructions(self) -> str | None: ...

    @property
    def options(self) -> SendOptions: ...

    @property
    def tools(self) -> Sequence[Tool]: ...

    @property
    def context_providers(self) -> Sequence[ContextProvider]: ...


class ContextProvider:
    """Base of all providers. Write each phase in one of two styles, whichever is nearer.

    `before_run` and `after_run` work on the run's `SessionContext` and have a dict that lives as
    long as the session. `on_invoking` returns a `ContextResult`, and `on_invoked` is told the end.
    A class with both styles of one phase is refused with `TypeError` when it is defined.
    """

    kind: str = "unknown"
    """What it is for: memory, skills, mcp, workspace, knowledge, wiki, compression."""
    _source_id: str | None = None

    def __init__(self, source_id: str | None = None) -> None:
        self._source_id = source_id

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for one, other in (("before_run", "on_invoking"), ("after_run", "on_invoked")):
            if all(
                getattr(cls, name) is not getattr(ContextProvider, name) for name in (one, other)
            ):
                raise TypeError(
                    f"{cls.__name__} has both {one} and {other}, of which only {one} would be "
                    "called: keep one of them"
                )

    @property
    def name(self) -> str:
        """How logs and diagnostics call it."""
        return self._source_id or type(self).__name__

    @property
    def source_id(self) -> str:
        """Names it within its agent: what it adds and its state are kept under this."""
        return self._source_id or self.name

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Add to the run. If this raises, nothing of what it added stays, and the run goes on."""
        del state
        said = list(context.input_messages)
        result = await self.on_invoking(agent, session, said, context.options)
        if result is not None:
            context.add(self, result)

    async def after_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Look at a run whose `before_run` was called, however it ended; once for each.

        It runs beside the caller, who doesn't wait; the session's next run does.
        """
        del state
        await self.on_invoked(
            agent, session, context.request_messages, context.response, context.error
        )

    async def on_invoking(
        self,
        agent: AgentLike,
        session: AgentSession,
        messages: Sequence[Message],
        options: SendOptions,
        /,
    ) -> ContextResult | None:
        """What to add to the run in which the caller says `messages`."""
        del agent, session, messages, options
        return None

    async def on_invoked(
        self,
        agent: AgentLike,
        session: AgentSession,
        request_messages: Sequence[Message],
        response: AgentResponse | None,
        error: BaseException | None,
        /,
    ) -> None:
        """Look at a run that has ended. Of `response` and `error`, one is None."""


BaseContextProvider = ContextProvider
