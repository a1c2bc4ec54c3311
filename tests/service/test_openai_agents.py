"""Agents of OpenAI's SDK, unmodified, with a service in the place of OpenAI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from agent_context import Message, ToolCall
from tests.service.conftest import Serve, Served
from tests.support.waiting import WAIT

set_tracing_disabled(disabled=True)


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It rains in {city}."


@pytest.fixture
def service(serve: Serve) -> Served:
    call = ToolCall(id="call_1", name="weather", arguments='{"city": "Oslo"}')
    return serve(
        [Message.assistant("", tool_calls=[call]), "Take an umbrella.", "You are welcome."]
    )


@pytest.fixture
async def client(service: Served) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=WAIT
    ) as made:
        yield made


async def test_an_agent_keeps_its_session_in_a_conversation(
    service: Served, client: AsyncOpenAI
) -> None:
    session: Any = OpenAIConversationsSession(openai_client=client)
    agent = Agent("a", tools=[weather], model=OpenAIResponsesModel("scripted", client))

    first = await Runner.run(agent, "Weather in Oslo?", session=session)
    second = await Runner.run(agent, "Thanks", session=session)

    assert (first.final_output, second.final_output) == ("Take an umbrella.", "You are welcome.")
    items = await session.get_items()
    assert [_kind(item) for item in items] == [
        "user", "function_call", "function_call_output", "assistant", "user", "assistant",
    ]  # fmt: skip


async def test_an_agent_goes_on_from_its_last_response(
    service: Served, client: AsyncOpenAI
) -> None:
    agent = Agent("a", tools=[weather], model=OpenAIResponsesModel("scripted", client))

    first = await Runner.run(agent, "Weather in Oslo?", auto_previous_response_id=True)
    second = await Runner.run(agent, "Thanks", previous_response_id=first.last_response_id)

    assert second.final_output == "You are welcome."
    (session,) = service.get("/v1/sessions").json()["data"]
    assert service.texts(session["id"]) == [
        "Weather in Oslo?", "", "It rains in Oslo.", "Take an umbrella.", "Thanks",
        "You are welcome.",
    ]  # fmt: skip


async def test_an_agent_streams_over_chat_completions(service: Served, client: AsyncOpenAI) -> None:
    agent = Agent("a", tools=[weather], model=OpenAIChatCompletionsModel("scripted", client))

    streamed = Runner.run_streamed(agent, "Weather in Oslo?")
    kinds = [event.type async for event in streamed.stream_events()]

    assert streamed.final_output == "Take an umbrella."
    assert "raw_response_event" in kinds


def _kind(item: Any) -> str:
    return str(item.get("role") or item["type"])
