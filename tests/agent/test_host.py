"""Agents whose conversations a host gives out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_context import Agent, ContextProvider, Host, Message, Send, SlidingWindow
from agent_context.errors import ConversationClosed, InvalidOptions
from agent_context.host import ConversationConfig
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import ScriptedBackend
from tests.agent.conftest import agent_of, sent, texts
from tests.host.conftest import until_parked


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "talks.db")
    yield made
    made.close()


class Counts(ContextProvider):
    """Counts the runs of each session."""

    async def after_run(self, *, state: dict[str, Any], **_: Any) -> None:
        state["runs"] = state.get("runs", 0) + 1


def hosted(store: Store, *script: str, **options: Any) -> tuple[Host, Agent]:
    client = ScriptedBackend(script)
    host = Host(store, client, close_store=False, **options)
    return host, agent_of(client, host=host, context_providers=[Counts("counts")])


async def test_a_session_goes_on_at_another_host(store: Store) -> None:
    host, agent = hosted(store, "1")
    async with host:
        await agent.run("a", session=agent.create_session("ann"), wait_for_persistence=True)

    host, agent = hosted(store, "2")
    async with host:
        session = agent.create_session("ann")
        await agent.run("b", session=session, wait_for_persistence=True)

        assert sent(agent) == ["user: a", "assistant: 1", "user: b"]
        assert session.state["counts"] == {"runs": 2}
        assert texts(await session.get_messages()) == ["a", "1", "b", "2"]


async def test_what_is_said_to_the_hosts_conversation_is_said_in_the_session(
    store: Store,
) -> None:
    host, agent = hosted(store, "1", "2", "3")
    async with host:
        session = agent.create_session("ann")
        await agent.run("a", session=session)

        ann = await host.aget("ann")
        await ann.aask(Send(messages=[Message.user("b")]))
        await agent.run("c", session=session)

        said = ["user: a", "assistant: 1", "user: b", "assistant: 2", "user: c"]
        assert sent(agent) == said


async def test_a_conversation_that_was_parked_wakes_for_the_next_run(store: Store) -> None:
    host, agent = hosted(store, "1", "2", idle=0.05)
    async with host:
        session = agent.create_session("ann")
        await agent.run("a", session=session, wait_for_persistence=True)
        await asyncio.to_thread(until_parked, host)

        await agent.run("b", session=session)

        assert sent(agent) == ["user: a", "assistant: 1", "user: b"]


@pytest.mark.behaviour(101)
async def test_sessions_of_a_host_run_beside_each_other(store: Store) -> None:
    client = ScriptedBackend(["ok"] * 20)
    async with Host(store, client, close_store=False, live=5) as host:
        agent = agent_of(client, host=host)
        sessions = [agent.create_session(f"s{n}") for n in range(20)]

        await asyncio.gather(*(agent.run(s.session_id, session=s) for s in sessions))

        for session in sessions:
            assert texts(await session.get_messages()) == [session.session_id, "ok"]


async def test_a_run_without_a_session_leaves_nothing_at_the_host(store: Store) -> None:
    host, agent = hosted(store, "1")
    async with host:
        await agent.run("a", wait_for_persistence=True)

        assert host.active_ids() == ()
        assert host.conversations() == ()


async def test_a_host_that_has_drained_takes_no_run(store: Store) -> None:
    host, agent = hosted(store, "1", "2")
    session = agent.create_session("ann")
    await agent.run("a", session=session, wait_for_persistence=True)
    await host.adrain()

    with pytest.raises(ConversationClosed):
        await agent.run("b", session=session)


def test_what_the_host_decides_is_not_the_agents_to_say(store: Store) -> None:
    client = ScriptedBackend()
    with Host(store, client, close_store=False) as host:
        with pytest.raises(InvalidOptions, match="store: the host has one"):
            Agent(client, host=host, store=store)
        with pytest.raises(InvalidOptions, match="compression: the host's conversations have"):
            Agent(client, host=host, compression=SlidingWindow(2))


def test_a_host_that_talks_to_another_model_is_refused(store: Store) -> None:
    with (
        Host(store, ScriptedBackend(), close_store=False) as host,
        pytest.raises(InvalidOptions, match="host: its conversations talk to another"),
    ):
        Agent(ScriptedBackend(), host=host)


async def test_a_host_may_choose_the_model_of_each_conversation(store: Store) -> None:
    client = ScriptedBackend(["1"])
    async with Host(store, lambda _: ConversationConfig(client), close_store=False) as host:
        assert host.backend is None
        agent = Agent(client, host=host)

        response = await agent.run("a", session=agent.create_session("ann"))

    assert response.text == "1"
