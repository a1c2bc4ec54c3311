"""An agent that asks another model for the length of a test."""

from __future__ import annotations

import pytest

from agent_context.errors import UsageError
from agent_context.testing import forbid_requests
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.scripted import ScriptedBackend
from tests.agent.conftest import agent_of, calls, texts


async def test_a_run_in_the_block_asks_the_other_model() -> None:
    agent = agent_of(["real", "real again"])
    session = agent.create_session()

    with agent.override(client=ScriptedBackend(["scripted"])):
        inside = await agent.run("one", session=session)
    outside = await agent.run("two", session=session)

    assert (inside.text, outside.text) == ("scripted", "real")
    assert texts(await session.get_messages()) == ["one", "scripted", "two", "real"]


async def test_a_run_in_the_block_offers_other_tools() -> None:
    async def look() -> str:
        return "faked"

    agent = agent_of([calls("look"), "done"], tools=[])

    with agent.override(tools=look):
        response = await agent.run("go")

    assert texts(response.messages) == ["look", "faked", "done"]
    assert agent.tools == ()


async def test_an_agent_is_as_it_was_after_a_block_that_failed() -> None:
    agent = agent_of(["real"])

    with pytest.raises(KeyError), agent.override(client=ScriptedBackend([])):
        raise KeyError

    assert (await agent.run("hi")).text == "real"


async def test_no_vendor_is_asked_where_that_is_forbidden() -> None:
    backend = DeepSeekBackend(api_key="sk-none", base_url="https://user:secret@example.org/v1")
    agent = backend.as_agent()

    with forbid_requests(), pytest.raises(UsageError, match=r"example\.org/v1/chat") as caught:
        await agent.run("hi")

    assert "secret" not in str(caught.value)


async def test_scripted_models_are_not_forbidden() -> None:
    with forbid_requests():
        assert (await agent_of(["done"]).run("hi")).text == "done"
