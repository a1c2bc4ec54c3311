"""Never run: holds the public types still, for mypy and pyright."""

from __future__ import annotations

from typing import assert_type

from agent_context import (
    AgentContext,
    Append,
    Cancel,
    Completion,
    Compress,
    CompressionReport,
    ContextRef,
    EstimateTokens,
    Extend,
    FindByRole,
    Fork,
    FromJsonl,
    Get,
    Len,
    Message,
    Messages,
    Pop,
    Remove,
    Role,
    Send,
    SendOptions,
    SendStream,
    Stream,
    StreamEvent,
    Subscribe,
    Summarize,
    ToJsonl,
    Tool,
    Unsubscribe,
)
from agent_context.breakdown import Breakdown
from agent_context_backends.deepseek import DeepSeekBackend


def from_a_thread() -> None:
    ctx = AgentContext.start(
        DeepSeekBackend(api_key="key"),
        immutable=[Message.system("You are terse.")],
        options=SendOptions(
            model="m", scratch="now", tools=[Tool(name="t")], stop="END", on_busy="steer"
        ),
        on_change=print,
    )
    assert_type(ctx, ContextRef)
    assert_type(ctx.ask(Append(Message.user("Hello"))), str)
    assert_type(ctx.ask(Extend([Message.user("Hello")])), tuple[str, ...])
    assert_type(ctx.ask(Len()), int)
    assert_type(ctx.ask(Get(0)), Message)
    assert_type(ctx.ask(Pop()), Message | None)
    assert_type(ctx.ask(Remove(0)), Message)
    assert_type(ctx.ask(Messages()), tuple[Message, ...])
    assert_type(ctx.ask(FindByRole(Role.USER)), tuple[tuple[int, Message], ...])
    assert_type(ctx.ask(Send()), Completion)
    assert_type(ctx.ask(SendStream()), Stream)
    assert_type(ctx.ask(Compress(Summarize(keep=2))), CompressionReport)
    assert_type(ctx.ask(EstimateTokens()), Breakdown)
    assert_type(ctx.ask(ToJsonl()), str)
    assert_type(ctx.ask(FromJsonl("")), int)
    assert_type(ctx.ask(Fork()), ContextRef)
    assert_type(ctx.ask(Cancel()), bool)
    assert_type(ctx.ask(Subscribe(print)), str)
    assert_type(ctx.ask(Unsubscribe("token")), bool)
    with ctx.ask(SendStream()) as stream:
        for event in stream:
            assert_type(event, StreamEvent)
    assert_type(stream.message, Message)


async def from_an_event_loop(ctx: ContextRef) -> None:
    assert_type(await ctx.aask(Len()), int)
    async with await ctx.aask(SendStream()) as stream:
        async for event in stream:
            assert_type(event, StreamEvent)
