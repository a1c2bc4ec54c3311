"""Never run: holds the public types still, for mypy and pyright."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from pydantic import BaseModel

from agent_context import (
    Agent,
    AgentContext,
    AgentResponse,
    AgentSession,
    Append,
    Cancel,
    Completion,
    Compress,
    ContextBackend,
    ContextRef,
    EstimateTokens,
    Extend,
    Fork,
    FromJsonl,
    Host,
    Message,
    Messages,
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
)
from agent_context._context.token_breakdown import TokenBreakdown
from agent_context.agent import AgentStream, AgentUpdate
from agent_context.compression import CompressionReport
from agent_context.host import ConversationConfig, FeedChange
from agent_context.prompt_cache import CacheUsageReport, PrefixReport
from agent_context.protocol import (
    CacheReport,
    FindByRole,
    Get,
    Len,
    Pop,
    Remove,
    Unsubscribe,
    UseBackend,
)
from agent_context.sessions import FileSessionStore, ScopedSessionStore, SessionStore
from agent_context.stores.store import Store
from agent_context.structured_output import parse_output
from agent_context.tools import FunctionTool, Toolbox, ToolRunResult, tool
from agent_context.tools.loop import ToolLoop, ToolLoopRunner
from agent_context.tools.mcp import McpTool, McpTools
from agent_context_backends.deepseek import DeepSeekBackend


class Weather(BaseModel):
    degrees: int


def from_a_thread() -> None:
    assert_type(AgentContext.start("openai:gpt-5.4"), ContextRef)
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
    assert_type(ctx.ask(Send("Hello")), Completion)
    assert_type(ctx.ask(Send(Message.user("Hello"), SendOptions(), key="k")), Completion)
    assert_type(ctx.ask(SendStream("Hello")), Stream)
    assert_type(ctx.say("Hello"), Completion)
    assert_type(ctx.say("Hello").text, str)
    for text in ctx.stream("Hello"):
        assert_type(text, str)
    assert_type(ctx.ask(SendStream()), Stream)
    assert_type(ctx.ask(Compress(Summarize(keep=2))), CompressionReport)
    assert_type(ctx.ask(EstimateTokens()), TokenBreakdown)
    assert_type(ctx.ask(CacheReport()), CacheUsageReport)
    assert_type(ctx.ask(CacheReport()).last, PrefixReport | None)
    assert_type(ctx.ask(UseBackend(DeepSeekBackend(api_key="key"))), ContextBackend)
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


@tool
def decorated(city: str) -> str:
    return city


@tool(name="other", timeout=3.0, approval="require")
async def configured(city: str) -> str:
    return city


async def tools_and_answers() -> None:
    assert_type(decorated, FunctionTool)
    assert_type(configured, FunctionTool)
    toolbox = Toolbox([decorated, configured], approve=lambda call: call.name == "other")
    assert_type(toolbox.tools, tuple[Tool, ...])
    assert_type(await toolbox.run(()), ToolRunResult)
    assert_type(parse_output("7", int), int)
    loop: ToolLoop = ToolLoopRunner(toolbox)
    assert loop
    async with McpTools(url="http://localhost/mcp") as server:
        assert_type(server.tools, tuple[McpTool, ...])


async def hosts(store: Store, backend: ContextBackend) -> None:
    with Host(store, backend, options=SendOptions(model="m"), idle=None) as host:
        assert_type(host.get("c").ask(Len()), int)
        assert_type(host.fork("c", at=2), ContextRef)
        assert_type(host.feed(), Sequence[FeedChange])
    async with Host(
        store, lambda name: ConversationConfig(backend, immutable=[Message.system(name)])
    ) as host:
        assert_type(await host.aget("c", patience=5), ContextRef)
        assert_type(await host.adrain(), bool)


async def with_an_agent(backend: ContextBackend) -> None:
    agent = backend.as_agent("Be brief.", name="Bob")
    assert_type(agent, Agent)
    session = agent.create_session()
    assert_type(session, AgentSession)
    assert_type(await agent.run("hi", session=session), AgentResponse)
    assert_type((await agent.run("hi", output_type=Weather)).value, Weather)
    assert_type(agent.run_sync("hi", output_type=Weather).value, Weather)
    assert_type(agent.run("hi", stream=True, output_type=Weather).response.value, Weather)
    stream = agent.run("hi", stream=True)
    assert_type(stream, AgentStream)
    async for update in stream:
        assert_type(update, AgentUpdate)
    assert_type(stream.response, AgentResponse)
    assert_type(agent.run_sync([Message.user("hi"), "more"]), AgentResponse)
    assert_type(await session.get_messages(), list[Message])


async def with_a_store_of_sessions(session: AgentSession) -> None:
    store: SessionStore = ScopedSessionStore(FileSessionStore("sessions"), "acme")
    await store.save(session)
    assert_type(await store.load("s"), AgentSession | None)
    assert_type(await store.delete("s"), bool)
    assert_type(await store.list(), Sequence[str])
