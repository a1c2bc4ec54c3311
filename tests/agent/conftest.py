"""Agents with scripted models, and providers that write down what happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_context import Agent, AgentSession, ContextProvider, Message, ToolCall
from agent_context.backend import Request
from agent_context.providers import ContextResult, SessionContext
from agent_context_backends.scripted import ScriptedBackend, ScriptItem


def agent_of(script: Iterable[ScriptItem] | ScriptedBackend = (), **described: Any) -> Agent:
    backend = script if isinstance(script, ScriptedBackend) else ScriptedBackend(script)
    return backend.as_agent(**described)


def requests(agent: Agent) -> list[Request]:
    """What the agent's model was asked."""
    assert isinstance(agent.client, ScriptedBackend)
    return agent.client.requests


def sent(agent: Agent, index: int = -1) -> list[str]:
    """A request as `role: text` for each message; the instructions come first."""
    request = requests(agent)[index]
    told = [f"system: {request.options.instructions}"] if request.options.instructions else []
    said = (record.message for record in request.records)
    lines = [f"{m.role}: {m.text or ','.join(c.id for c in m.tool_calls)}" for m in said]
    return lines if told == lines[:1] else [*told, *lines]


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text or ",".join(c.id for c in message.tool_calls) for message in messages]


def calls(*names: str, arguments: str = "{}") -> Message:
    """An answer that calls tools, each call with the tool's name as its id."""
    made = [ToolCall(id=name, name=name, arguments=arguments) for name in names]
    return Message.assistant("", tool_calls=made)


Log = list[str]


class Gives(ContextProvider):
    """Adds what it is told to, and writes down its calls."""

    def __init__(
        self,
        name: str,
        result: ContextResult | Exception | None = None,
        *,
        log: Log | None = None,
        after: Exception | None = None,
    ) -> None:
        super().__init__(name)
        self.result = result
        self.log = [] if log is None else log
        self.after = after
        self.invoking: list[tuple[Any, ...]] = []
        self.invoked: list[tuple[Any, ...]] = []
        self.told = asyncio.Event()

    async def on_invoking(self, *given: Any) -> ContextResult | None:
        self.log.append(f"{self.name} before")
        self.invoking.append(given)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    async def on_invoked(self, *given: Any) -> None:
        self.log.append(f"{self.name} after")
        self.invoked.append(given)
        self.told.set()
        if self.after is not None:
            raise self.after


class Works(ContextProvider):
    """Does what a function does to the context of each run, and keeps the contexts."""

    def __init__(self, name: str, work: Callable[[SessionContext], object] | None = None) -> None:
        super().__init__(name)
        self._work = work
        self.contexts: list[SessionContext] = []

    async def before_run(
        self,
        *,
        agent: Any,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        self.contexts.append(context)
        if self._work is not None:
            self._work(context)


def says(*words: str) -> ContextResult:
    """A result with a user's message for each text."""
    return ContextResult(messages=[Message.user(text) for text in words])
