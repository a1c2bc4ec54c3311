"""Sessions of a store or a host before their first run, and the end of an agent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_context import Agent, AgentSession, Host, Message, ToolCall
from agent_context.errors import UsageError
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import tool
from agent_context_backends.scripted import ScriptedBackend, ScriptItem
from tests.agent.conftest import agent_of, calls, requests, texts


@tool(approval="require")
def delete(what: str = "it") -> str:
    """Delete something."""
    return f"{what} is gone"


@asynccontextmanager
async def an_agent(kind: str, store: Store, *script: ScriptItem) -> AsyncGenerator[Agent]:
    """An agent in a process of its own, as far as the store can tell."""
    if kind == "store":
        async with agent_of(script, store=store, tools=[delete]) as agent:
            yield agent
        return
    backend = ScriptedBackend(script)
    async with (
        Host(store, backend, close_store=False) as host,
        agent_of(backend, host=host, tools=[delete]) as agent,
    ):
        yield agent


KINDS = pytest.mark.parametrize("kind", ["store", "host"])


@KINDS
async def test_a_session_tells_what_was_said_before_its_first_run(kind: str) -> None:
    store = MemoryStore()
    async with an_agent(kind, store, "hello") as agent:
        await agent.run("hi", session=agent.create_session("ann"))

    async with an_agent(kind, store, "again") as agent:
        session = agent.create_session("ann")
        before = texts(await session.get_messages())
        kept = await session.snapshot()
        await agent.run("more", session=session)

        assert before == ["hi", "hello"]
        assert "hello" in kept["messages"]
        assert texts(await session.get_messages()) == ["hi", "hello", "more", "again"]


@KINDS
async def test_calls_that_wait_are_found_in_another_process(kind: str) -> None:
    store = MemoryStore()
    asked = [ToolCall(id=i, name="delete", arguments='"{\\"what\\": \\"x\\"}"') for i in "ab"]
    async with an_agent(kind, store, Message.assistant(tool_calls=asked)) as agent:
        session = agent.create_session("ann")
        await agent.run("go", session=session)
        first = await agent.run(session=session, approvals={"a": True})

    async with an_agent(kind, store, "done") as agent:
        session = agent.create_session("ann")
        pending = await session.get_pending_calls()
        response = await agent.run(session=session, approvals={pending[0].id: True})
        after = await session.get_pending_calls()

    assert pending == first.pending == (ToolCall(id="b", name="delete", arguments='{"what": "x"}'),)
    assert texts(response.messages)[1:] == ["x is gone", "x is gone", "done"]
    assert after == ()


@KINDS
async def test_who_reads_a_session_that_was_never_used_makes_nothing(kind: str) -> None:
    store = MemoryStore()
    async with an_agent(kind, store) as agent:
        session = agent.create_session("ann")

        assert await session.get_messages() == []
        assert await session.get_pending_calls() == ()
        assert (await session.snapshot())["messages"] == ""
        assert store.info("ann") is None


async def test_a_session_without_a_store_has_pending_calls_too() -> None:
    agent = agent_of([calls("delete"), "done"], tools=[delete])
    session = agent.create_session()
    waits = await agent.run("go", session=session)

    assert await session.get_pending_calls() == waits.pending != ()
    await agent.run(session=session, approvals={"delete": True})
    assert await session.get_pending_calls() == ()


async def test_a_session_that_was_written_tells_what_it_holds_before_it_runs() -> None:
    agent = agent_of([calls("delete"), "done"], tools=[delete])
    session = agent.create_session()
    waits = await agent.run("go", session=session)

    moved = AgentSession.from_dict(session.to_dict())

    assert texts(await moved.get_messages()) == ["go", "delete"]
    assert await moved.get_pending_calls() == waits.pending
    response = await agent.run(session=moved, approvals={"delete": True})
    assert response.text == "done"


async def test_a_session_is_opened_once_however_many_ask() -> None:
    store = MemoryStore()
    async with an_agent("store", store, "hello") as agent:
        await agent.run("hi", session=agent.create_session("ann"))

    async with an_agent("store", store, "a", "b") as agent:
        session = agent.create_session("ann")
        await asyncio.gather(
            *(session.get_messages() for _ in range(5)),
            agent.run("1", session=session),
            agent.run("2", session=session),
        )
        said = texts(await session.get_messages())

    assert said[:2] == ["hi", "hello"]
    assert len(said) == 6


def test_what_was_not_read_yet_is_not_written_as_nothing() -> None:
    agent = agent_of([], store=MemoryStore())

    with pytest.raises(UsageError, match="await its snapshot"):
        agent.create_session("ann").to_dict()


async def test_a_closed_agent_has_kept_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqliteStore(tmp_path / "x.db")
    with caplog.at_level(logging.WARNING):
        async with agent_of(["a"] * 40, store=store) as agent:
            session = agent.create_session("ann")
            for _ in range(39):
                await agent.run("x", session=session)
            await agent.run("dropped", session=agent.create_session())
        about = store.info("ann")
        store.close()

    assert about is not None
    assert about.owner is None
    assert caplog.records == []
    assert len(requests(agent)) == 40


async def test_a_closed_agent_runs_no_more() -> None:
    agent = agent_of(["1", "2"])
    session = agent.create_session()
    await agent.run("go", session=session)

    await agent.close()
    await agent.close()

    with pytest.raises(UsageError, match="the agent was closed"):
        await agent.run("more", session=session)
    with pytest.raises(UsageError, match="the agent was closed"):
        await agent.run("more")


async def test_the_conversations_of_a_host_stay_awake() -> None:
    store, backend = MemoryStore(), ScriptedBackend(["1"])
    async with Host(store, backend) as host:
        async with backend.as_agent(host=host) as agent:
            await agent.run("go", session=agent.create_session("ann"))

        assert (await host.aget("ann")).actor_ref.is_alive()
