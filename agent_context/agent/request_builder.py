"""What a run sends, put together from the agent, its providers and the caller."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, cast

import orjson
from msgspec import Struct

from agent_context._validation import check_callback
from agent_context.agent.turn import Request
from agent_context.backend import ContextBackend
from agent_context.compression.strategy import Strategy
from agent_context.errors import InvalidOptions
from agent_context.messages import Message, Role
from agent_context.options import SendOptions
from agent_context.providers.compression import (
    AnyStrategy,
    TokenCounter,
    check_strategy,
    compress,
    input_budget,
)
from agent_context.providers.context import SessionContext
from agent_context.providers.response import Diagnostic
from agent_context.sessions.lazy_messages import ChainedMessages
from agent_context.sessions.session import AgentSession
from agent_context.tools import Tool
from agent_context.tools.merge import ToolConflict, ToolSource, merge

__all__ = ["INSTRUCTION_SEPARATOR", "AnyCounter", "RequestBuilder"]

logger = logging.getLogger(__name__)

INSTRUCTION_SEPARATOR: Final = "\n\n"
"""Stands between the agent's instructions and those of each provider."""

AnyCounter = TokenCounter | Callable[[Sequence[Message]], int]

_HEAD: Final = {"model", "effort", "thinking", "tool_choice", "response_format", "extra"}


class RequestBuilder(Struct, frozen=True, kw_only=True):
    """How an agent makes its requests."""

    client: ContextBackend
    tools: Sequence[Tool] = ()
    tool_conflict: ToolConflict = "skip"
    strategy: AnyStrategy | None = None
    counter: AnyCounter | None = None

    def __post_init__(self) -> None:
        if self.strategy is not None:
            check_strategy("compression_strategy", self.strategy)
        if self.counter is not None:
            check_callback("token_counter", getattr(self.counter, "count_tokens", self.counter))

    def merge_tools(self, context: SessionContext, of_run: Sequence[Tool]) -> tuple[Tool, ...]:
        """The agent's tools, those of the run, and those of the providers, in this order."""
        own = ToolSource("the agent", (*self.tools, *context.options.tools))
        given = (ToolSource(source, [tool]) for source, tool in context.tools_by_source)
        merged = merge(own, ToolSource("the run", of_run), *given, conflict=self.tool_conflict)
        context.diagnostics += [
            Diagnostic(item.tool, "merge", str(item)) for item in merged.skipped
        ]
        return merged.tools

    async def build(
        self,
        session: AgentSession,
        context: SessionContext,
        tools: Sequence[Tool],
        resumed: Sequence[Message],
    ) -> Request:
        """The request of a run. `resumed` are an earlier run's last answer, and its results now."""
        options = _merge_options(context, tools)
        history, extra = _split_history(context, resumed)
        system = [Message.system(options.instructions)] if options.instructions else []
        before: Sequence[Message] = ChainedMessages(context.prior_messages or (), resumed[1:])
        before = before if history is None else history
        sent = ChainedMessages(system, before, extra, context.input_messages)
        outgoing: Sequence[Message] | None = None
        if (smaller := await self._compress(sent, before, extra, options, context)) is not None:
            outgoing = _own_messages(smaller, context.input_messages)
            own = {message.id for message in outgoing}
            history, extra = [said for said in smaller if said.id not in own], []
            sent = ChainedMessages(system, history, outgoing)
        session.sent_history = history
        session.touch_request_hash(
            sent, tools=tools, fields=options.model_dump(include=_HEAD, exclude_defaults=True)
        )
        context.request_messages = sent
        return Request(
            options=options,
            messages=tuple(context.input_messages),
            context=extra,
            history=history,
            outgoing=outgoing,
        )

    async def _compress(
        self,
        sent: Sequence[Message],
        before: Sequence[Message],
        extra: Sequence[Message],
        options: SendOptions,
        context: SessionContext,
    ) -> list[Message] | None:
        """What to send in the place of the history, if all of it is too much for the model.

        Only what goes out changes. If the strategy fails, everything goes out as it is.
        """
        if self.strategy is None or self.counter is None:
            return None
        try:
            budget = input_budget(self.client, options)
            if budget is None:
                return None
            taken = self._count([*sent, *_tools_as_message(options.tools)])
            if taken <= budget:
                return None
            what, room = list(sent), budget
            if isinstance(self.strategy, Strategy):
                what = [*before, *extra]
                room = max(0, budget - (taken - self._count(what)))
            smaller = await compress(
                self.strategy, what, budget=room, counter=self.counter, backend=self.client,
                options=options,
            )  # fmt: skip
        except Exception as error:
            logger.warning("compression failed; the messages go out as they are", exc_info=error)
            context.diagnostics.append(Diagnostic("compression", "compress", str(error), error))
            return None
        return [said for said in smaller if said.role is not Role.SYSTEM]

    def _count(self, messages: Sequence[Message]) -> int:
        count = getattr(self.counter, "count_tokens", self.counter)
        tokens = cast("Callable[[Sequence[Message]], object]", count)(messages)
        if isinstance(tokens, int | float):
            return int(tokens)
        raise InvalidOptions(f"token_counter: a number expected, not {type(tokens).__name__}")


def _own_messages(smaller: Sequence[Message], said: Sequence[Message]) -> list[Message]:
    """The caller's messages as the strategy left them; what it left out is sent all the same."""
    left = {message.id: message for message in smaller}
    return [left.get(message.id, message) for message in said]


def _merge_options(context: SessionContext, tools: Sequence[Tool]) -> SendOptions:
    options = context.options
    texts = (options.instructions, *context.instructions)
    scratch = (
        *cast("Sequence[Message]", options.scratch),
        *(Message.system(text) for text in context.scratch),
    )
    return options.model_copy(
        update={
            "instructions": INSTRUCTION_SEPARATOR.join(filter(None, texts)) or None,
            "scratch": scratch,
            "tools": tuple(tools),
            "on_busy": "queue",
        }
    )


def _split_history(
    context: SessionContext, resumed: Sequence[Message]
) -> tuple[list[Message] | None, list[Message]]:
    """What stands in the place of the history, if anything does, and what follows it."""
    if context.history_replaced_from is None:
        return None, context.get_messages(exclude_sources=(context.conversation_source or "",))
    sources = list(context.context_messages)
    end = sources.index(context.history_replaced_from) + 1
    history = context.get_messages(sources=sources[:end])
    return [*history, *resumed], context.get_messages(sources=sources[end:])


def _tools_as_message(tools: Sequence[Tool]) -> list[Message]:
    """The tools as a message, for a counter that counts messages."""
    if not tools:
        return []
    return [Message.system(orjson.dumps([tool.model_dump() for tool in tools]).decode())]
