"""Agents with real requests: what goes out on the wire, and a model that thinks for itself."""

from __future__ import annotations

import pytest

from agent_context import Message, SendOptions
from agent_context.providers import ContextResult, InMemoryHistoryProvider
from agent_context.tools import tool
from agent_context_backends.local import LocalBackend
from agent_context_backends.openai import OpenAIBackend
from tests.agent.conftest import Gives
from tests.support.local_model import needs_model
from tests.support.mock import OK, Recorded


@tool
def look(where: str) -> str:
    """Look around.

    Args:
        where: The place.
    """
    return f"nothing {where}"


@pytest.mark.behaviour(24)
@pytest.mark.behaviour(43)
async def test_a_request_on_the_wire() -> None:
    transport = Recorded(OK)
    client = OpenAIBackend(api_key="k", transport=transport)
    added = ContextResult(instructions="More.", messages=[Message.user("context")])
    agent = client.as_agent("Be brief.", tools=[look], context_providers=[Gives("p", added)])

    await agent.run("hello", options=SendOptions(model="gpt-4o"))

    assert transport.body["messages"] == [
        {"role": "system", "content": "Be brief.\n\nMore."},
        {"role": "user", "content": "context"},
        {"role": "user", "content": "hello"},
    ]
    [offered] = transport.body["tools"]
    assert offered["type"] == "function"
    assert offered["function"]["name"] == "look"
    assert offered["function"]["description"] == "Look around."
    assert offered["function"]["parameters"]["required"] == ["where"]
    await client.aclose()


class TestLocalModel:
    pytestmark = needs_model

    async def test_a_small_model_goes_through_two_runs(self) -> None:
        client = LocalBackend(context_window=1024)
        agent = client.as_agent(
            "Answer in one short sentence.",
            context_providers=[InMemoryHistoryProvider("memory", load_messages=True)],
            options=SendOptions(max_tokens=24, temperature=0),
        )
        session = agent.create_session()

        first = await agent.run("The secret word is banana.", session=session)
        stream = agent.run("What is the secret word?", session=session, stream=True)
        heard = "".join([update.text async for update in stream])

        assert first.text
        assert heard == stream.response.text
        assert "banana" in heard
        assert len(await session.get_messages()) == 4
        await client.aclose()
