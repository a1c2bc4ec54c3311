"""Agents with models that answer for themselves, and servers that nobody here wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from pathlib import Path

import httpx
import pytest

from agent_context import (
    Agent,
    AgentSession,
    BackendError,
    Compress,
    FinishReason,
    Role,
    SendOptions,
    Summarize,
)
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import tool
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.local import LocalBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.support.local_model import needs_model
from tests.support.model_servers import aimock_server, behave, llmock_server

WEATHER = "What is the weather in Paris?"


@tool
async def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"21 degrees in {city}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(SqliteStore(tmp_path / "talks.db")) as kept:
        yield kept


async def stopped(session: AgentSession) -> None:
    assert session.conversation is not None
    await asyncio.to_thread(session.conversation.stop)


class TestLocalModel:
    pytestmark = needs_model

    async def test_it_goes_on_after_a_stop_and_recalls(self, store: Store) -> None:
        client = LocalBackend(context_window=1024)
        agent = client.as_agent(
            "Answer in one short sentence.",
            options=SendOptions(max_tokens=24, temperature=0),
            store=store,
        )
        first = agent.create_session("s")
        await agent.run("My dog is called Rex.", session=first, wait_for_persistence=True)
        said = await first.get_messages()
        await stopped(first)

        again = AgentSession("s")
        response = await agent.run("What is my dog's name?", session=again)

        assert (await again.get_messages())[:2] == said
        assert "Rex" in response.text
        await stopped(again)
        await client.aclose()

    async def test_what_was_left_early_is_kept_and_summarised(self, store: Store) -> None:
        client = LocalBackend(context_window=1024)
        agent = client.as_agent(options=SendOptions(max_tokens=48, temperature=0), store=store)
        session = agent.create_session("s")
        async with agent.run("Tell me a story of a fox.", session=session, stream=True) as stream:
            heard = (await anext(stream)).text
        await agent.run("Write a long list of animals.", session=session)
        await agent.run("And now the same list in other words.", session=session)
        cut_short = (await session.get_messages())[1]

        assert session.conversation is not None
        report = await session.conversation.aask(Compress(Summarize(keep=2, target=40)))
        response = await agent.run("Thank you. Say goodbye.", session=session)

        assert cut_short.interrupted
        assert cut_short.text.startswith(heard)
        assert report.changed
        assert response.text
        await stopped(session)
        await client.aclose()


@pytest.fixture(scope="module")
def llmock() -> Iterator[str]:
    yield from llmock_server()


@pytest.mark.server
class TestLlmock:
    @pytest.fixture
    def url(self, llmock: str) -> str:
        httpx.post(f"{llmock}/_llmock/reset", trust_env=False)
        return llmock

    @pytest.fixture
    async def agent(self, url: str, store: Store) -> AsyncIterator[Agent]:
        client = OpenAIBackend(api_key="sk-test", base_url=f"{url}/v1")
        options = SendOptions(model="gpt-4o", max_tokens=100)
        async with aclosing(client):
            yield client.as_agent("Be brief.", tools=[get_weather], options=options, store=store)

    @pytest.mark.parametrize("stream", [False, True])
    async def test_tools_are_called_over_http(self, url: str, agent: Agent, stream: bool) -> None:
        calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Paris", "Rome")]
        behave(url, type="reply", tool_calls=calls)
        behave(url, type="reply", text="It is warm.")
        session = agent.create_session("s")

        if stream:
            response = await agent.run(WEATHER, session=session, stream=True).get_final_response()
        else:
            response = await agent.run(WEATHER, session=session)

        results = [m.text for m in response.messages if m.role is Role.TOOL]
        assert results == ["21 degrees in Paris", "21 degrees in Rome"]
        assert response.text == "It is warm."
        await stopped(session)

    @pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
    async def test_a_call_that_makes_no_sense_is_answered(
        self, url: str, agent: Agent, kind: str
    ) -> None:
        behave(url, type="tool_fault", kind=kind)
        behave(url, type="reply", text="I am sorry.")
        session = agent.create_session("s")

        response = await agent.run(WEATHER, session=session)

        (result,) = [m for m in response.messages if m.role is Role.TOOL]
        assert "21 degrees" not in result.text
        assert response.finish_reason is FinishReason.STOP
        await stopped(session)

    @pytest.mark.parametrize("kind", ["disconnect", "truncate", "malformed"])
    async def test_a_stream_that_breaks_off_leaves_a_talk_that_goes_on(
        self, url: str, agent: Agent, kind: str
    ) -> None:
        behave(url, type="reply", text="one two three four five six")
        behave(url, type="stream_fault", kind=kind, after_chunks=3)
        session = agent.create_session("s")

        with pytest.raises(BackendError):
            await agent.run("Count.", session=session, stream=True).get_final_response()
        behave(url, type="reply", text="Seven.")
        response = await agent.run("Go on.", session=session)

        said = await session.get_messages()
        assert [m.role.value for m in said] == ["user", "assistant", "user", "assistant"]
        assert said[1].interrupted
        assert response.text == "Seven."
        await stopped(session)

    async def test_a_stream_that_breaks_off_in_a_call_leaves_no_open_call(
        self, url: str, agent: Agent
    ) -> None:
        call = {"name": "get_weather", "arguments": {"city": "Paris"}}
        behave(url, type="reply", tool_calls=[call])
        behave(url, type="stream_fault", kind="disconnect", after_chunks=2)
        session = agent.create_session("s")

        with pytest.raises(BackendError):
            await agent.run(WEATHER, session=session, stream=True).get_final_response()
        await stopped(session)
        again = AgentSession("s")
        behave(url, type="reply", text="Sorry.")
        response = await agent.run("Are you there?", session=again)

        assert response.text == "Sorry."
        assert not any(message.tool_calls for message in await again.get_messages())
        await stopped(again)

    async def test_a_run_that_is_cancelled_while_the_server_is_silent_is_repeated(
        self, url: str, agent: Agent
    ) -> None:
        behave(url, type="reply", text="one two three four five six")
        behave(url, type="stream_fault", kind="stall", after_chunks=3, stall_seconds=30)
        session = agent.create_session("s")
        stream = agent.run("Count.", session=session, stream=True)
        heard = (await anext(stream)).text

        await stream.aclose()
        behave(url, type="reply", text="one two")
        response = await agent.run("Count.", session=session)

        said = [m.text for m in await session.get_messages()]
        assert said[1].startswith(heard)
        assert said[2:] == ["Count.", "one two"]
        assert response.text == "one two"
        await stopped(session)


FIXTURES = {
    "fixtures": [
        {
            "match": {"userMessage": "weather", "hasToolResult": False},
            "response": {"toolCalls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]},
        },
        {
            "match": {"userMessage": "weather", "hasToolResult": True},
            "response": {"content": "It is 21 degrees.", "reasoning": "So it says."},
        },
        {"match": {"userMessage": "thank"}, "response": {"content": "You are welcome."}},
        {
            "match": {"userMessage": "cut"},
            "response": {"content": "one two three four five six seven eight nine ten"},
            "chunkSize": 4,
            "latency": 30,
            "truncateAfterChunks": 3,
        },
    ]
}

VENDORS = [
    pytest.param(DeepSeekBackend, "", "deepseek-flash", id="deepseek"),
    pytest.param(OpenAIBackend, "/v1", "gpt-5.4", id="openai"),
    pytest.param(ZhipuBackend, "/api/paas/v4", "glm-5.2", id="zhipu"),
]


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from aimock_server(tmp_path_factory.mktemp("aimock"), FIXTURES)


@pytest.mark.server
@pytest.mark.parametrize(("vendor", "path", "model"), VENDORS)
class TestAimock:
    @pytest.fixture
    async def agent(
        self,
        aimock: str,
        store: Store,
        vendor: type[ChatCompletionsBackend],
        path: str,
        model: str,
    ) -> AsyncIterator[Agent]:
        client = vendor(api_key="k", base_url=aimock + path)
        async with aclosing(client):
            yield client.as_agent(
                tools=[get_weather], options=SendOptions(model=model), store=store
            )

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_talk_with_tools_goes_on_after_a_stop(self, agent: Agent, stream: bool) -> None:
        first = agent.create_session("s")
        if stream:
            response = await agent.run("weather?", session=first, stream=True).get_final_response()
        else:
            response = await agent.run("weather?", session=first)
        said = await first.get_messages()
        await stopped(first)

        again = AgentSession("s")
        thanks = await agent.run("thank you", session=again)

        assert [m.text for m in response.messages] == ["", "21 degrees in Paris", response.text]
        assert response.text == "It is 21 degrees."
        assert (await again.get_messages())[:4] == said
        assert thanks.text == "You are welcome."
        await stopped(again)

    async def test_a_stream_that_is_cut_off_is_kept_as_far_as_it_came(self, agent: Agent) -> None:
        session = agent.create_session("s")

        with pytest.raises(BackendError):
            await agent.run("cut", session=session, stream=True).get_final_response()
        thanks = await agent.run("thank you", session=session)

        half = (await session.get_messages())[1]
        assert half.interrupted
        assert "one two three".startswith(half.text)
        assert thanks.text == "You are welcome."
        await stopped(session)
