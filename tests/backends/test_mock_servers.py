"""Servers that nobody here wrote: llmock (PyPI) and aimock (npm)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agent_context import AgentContext, Messages, Send, SendStream
from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message
from agent_context.options import SendOptions
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
)
from agent_context.testing import request_of
from agent_context.tools import Tool
from agent_context_backends.anthropic import AnthropicBackend
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.support.model_servers import aimock_server, behave, llmock_server

pytestmark = [pytest.mark.anyio, pytest.mark.server, pytest.mark.timeout(60)]

WEATHER = Tool(
    name="get_weather",
    description="The weather in a city",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)


async def answered(
    backend: ChatCompletionsBackend, *messages: Message | str, **options: Any
) -> Completion:
    said = [Message.user(one) if isinstance(one, str) else one for one in messages]
    try:
        return await backend.send(request_of(backend, *said, options=SendOptions(**options)))
    finally:
        await backend.aclose()


async def streamed(
    backend: ChatCompletionsBackend, *messages: Message | str, **options: Any
) -> tuple[list[StreamEvent], BackendError | None]:
    said = [Message.user(one) if isinstance(one, str) else one for one in messages]
    request = request_of(backend, *said, options=SendOptions(**options))
    events: list[StreamEvent] = []
    try:
        async for event in backend.send_stream(request):
            events.append(event)  # noqa: PERF401 - what comes before an error is wanted
    except BackendError as error:
        return events, error
    finally:
        await backend.aclose()
    return events, None


def completion_in(events: list[StreamEvent]) -> Completion:
    assert isinstance(events[-1], Finished)
    return events[-1].completion


@pytest.fixture(scope="module")
def llmock() -> Iterator[str]:
    yield from llmock_server()


@pytest.fixture
def fresh_llmock(llmock: str) -> str:
    httpx.post(f"{llmock}/_llmock/reset", trust_env=False)
    return llmock


def llmock_backend(url: str, **options: Any) -> OpenAIBackend:
    return OpenAIBackend(api_key="sk-test", base_url=f"{url}/v1", **options)


class TestLlmock:
    async def test_a_whole_answer(self, fresh_llmock: str) -> None:
        behave(fresh_llmock, type="reply", text="Hello there")

        completion = await answered(llmock_backend(fresh_llmock), "Say hello", model="gpt-4o")

        assert completion.message.text == "Hello there"
        assert completion.finish_reason is FinishReason.STOP
        assert completion.usage.input_tokens
        assert completion.model.startswith("gpt-4o")

    async def test_a_stream_with_its_usage(self, fresh_llmock: str) -> None:
        behave(fresh_llmock, type="reply", text="one two three four five")

        events, error = await streamed(llmock_backend(fresh_llmock), "Hi", model="gpt-4o")

        assert error is None
        assert len([event for event in events if isinstance(event, TextDelta)]) > 1
        completion = completion_in(events)
        assert completion.message.text == "one two three four five"
        assert completion.usage.output_tokens

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_tool_loop(self, fresh_llmock: str, *, stream: bool) -> None:
        question = Message.user("What is the weather in Paris?")
        options = {"model": "gpt-4o", "tools": (WEATHER,)}
        backend = llmock_backend(fresh_llmock)

        if stream:
            events, _ = await streamed(backend, question, **options)
            asked = completion_in(events)
            assert any(isinstance(event, ToolCallDelta) for event in events)
        else:
            asked = await answered(backend, question, **options)

        call = asked.message.tool_calls[0]
        assert asked.finish_reason is FinishReason.TOOL_CALLS
        assert call.name == "get_weather"
        assert isinstance(json.loads(call.arguments), dict)
        result = Message.tool(call.id, '{"degrees": 21}')
        final = await answered(backend, question, asked.message, result, **options)
        assert final.message.text

    async def test_a_rate_limit_says_how_long_to_wait(self, fresh_llmock: str) -> None:
        behave(fresh_llmock, type="fail", status=429, retry_after=3)

        with pytest.raises(BackendError) as caught:
            await answered(llmock_backend(fresh_llmock), "Hi", model="gpt-4o")

        assert caught.value.kind is ErrorKind.RATE_LIMITED
        assert caught.value.retry_after == 3

    @pytest.mark.parametrize("kind", ["disconnect", "truncate"])
    async def test_a_broken_stream_is_noticed(self, fresh_llmock: str, kind: str) -> None:
        behave(fresh_llmock, type="reply", text="one two three four five six")
        behave(fresh_llmock, type="stream_fault", kind=kind, after_chunks=3)

        events, error = await streamed(llmock_backend(fresh_llmock), "Hi", model="gpt-4o")

        assert error is not None
        assert (error.kind, error.retryable) == (ErrorKind.TRANSPORT, True)
        assert not any(isinstance(event, Finished) for event in events)

    async def test_a_malformed_chunk_is_noticed(self, fresh_llmock: str) -> None:
        behave(fresh_llmock, type="reply", text="one two three four five six")
        behave(fresh_llmock, type="stream_fault", kind="malformed", after_chunks=2)

        _, error = await streamed(llmock_backend(fresh_llmock), "Hi", model="gpt-4o")

        assert error is not None
        assert error.kind is ErrorKind.PROTOCOL

    async def test_silence_is_noticed(self, fresh_llmock: str) -> None:
        behave(fresh_llmock, type="reply", text="one two three four five six")
        behave(fresh_llmock, type="stream_fault", kind="stall", after_chunks=2, stall_seconds=20)

        _, error = await streamed(
            llmock_backend(fresh_llmock, idle_timeout=0.5), "Hi", model="gpt-4o"
        )

        assert error is not None
        assert error.kind is ErrorKind.TRANSPORT
        assert "nothing came" in str(error)

    async def test_too_long_a_request_is_a_context_overflow(self, fresh_llmock: str) -> None:
        with pytest.raises(BackendError) as caught:
            await answered(llmock_backend(fresh_llmock), "word " * 4000, model="gpt-4o")

        assert caught.value.kind is ErrorKind.CONTEXT_OVERFLOW

    async def test_its_verdict_is_good(self, fresh_llmock: str) -> None:
        behave(fresh_llmock, type="reply", text="one two three four")
        behave(fresh_llmock, type="stream_fault", kind="truncate", after_chunks=2)
        await streamed(llmock_backend(fresh_llmock), "Hi", model="gpt-4o")
        await streamed(llmock_backend(fresh_llmock), "Hi", model="gpt-4o")

        async with httpx.AsyncClient(trust_env=False) as http:
            verdict = (await http.get(f"{fresh_llmock}/_llmock/verdict")).text

        assert "truncated_stream_accepted" not in verdict

    async def test_a_conversation_waits_as_told_and_keeps_half_an_answer(
        self, fresh_llmock: str
    ) -> None:
        behave(fresh_llmock, type="fail", status=429, retry_after=1, times=1)
        behave(fresh_llmock, type="reply", text="one two three four five six")
        behave(fresh_llmock, type="stream_fault", kind="truncate", after_chunks=3)
        ctx = AgentContext.start(
            llmock_backend(fresh_llmock), options=SendOptions(model="gpt-4o", max_tokens=100)
        )

        waited = await ctx.aask(Send(messages=[Message.user("Hi")]))
        stream = await ctx.aask(SendStream(messages=[Message.user("Go on")]))
        with pytest.raises(BackendError):
            async for _ in stream:
                pass
        kept = (await ctx.aask(Messages()))[-1]
        async with httpx.AsyncClient(trust_env=False) as http:
            verdict = (await http.get(f"{fresh_llmock}/_llmock/verdict")).text

        assert waited.message.text
        assert stream.message.interrupted
        assert kept == stream.message
        assert "retry_after_ignored" not in verdict


FIXTURES = {
    "fixtures": [
        {
            "match": {"userMessage": "think"},
            "response": {"content": "It is four.", "reasoning": "Two and two."},
        },
        {
            "match": {"userMessage": "weather", "hasToolResult": True},
            "response": {"content": "It is 21 degrees."},
        },
        {
            "match": {"userMessage": "weather", "hasToolResult": False},
            "response": {"toolCalls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]},
        },
        {
            "match": {"userMessage": "limit"},
            "response": {
                "error": {"message": "Rate limited", "type": "rate_limit_error"},
                "status": 429,
            },
        },
        {
            "match": {"userMessage": "cut"},
            "response": {"content": "one two three four five six seven eight nine ten"},
            "chunkSize": 4,
            "latency": 30,
            "truncateAfterChunks": 3,
        },
    ]
}


@pytest.fixture(scope="module")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from aimock_server(tmp_path_factory.mktemp("aimock"), FIXTURES)


VENDORS = [
    pytest.param(DeepSeekBackend, "", "deepseek-flash", id="deepseek"),
    pytest.param(OpenAIBackend, "/v1", "gpt-5.4", id="openai"),
    pytest.param(AnthropicBackend, "", "claude-sonnet-4-6", id="anthropic"),
    pytest.param(ZhipuBackend, "/api/paas/v4", "glm-5.2", id="zhipu"),
]
Vendor = type[ChatCompletionsBackend]


@pytest.mark.parametrize(("vendor", "path", "model"), VENDORS)
class TestAimock:
    async def test_reasoning_streams_before_the_answer(
        self, aimock: str, vendor: Vendor, path: str, model: str
    ) -> None:
        backend = vendor(api_key="k", base_url=aimock + path)

        events, error = await streamed(backend, "think", model=model)

        assert error is None
        assert isinstance(events[0], ReasoningDelta)
        completion = completion_in(events)
        assert completion.message.reasoning == "Two and two."
        assert completion.message.text == "It is four."
        assert completion.usage.input_tokens is not None
        origin = completion.message.origin
        assert origin is not None
        assert origin.vendor == vendor.vendor

    async def test_a_whole_answer(self, aimock: str, vendor: Vendor, path: str, model: str) -> None:
        backend = vendor(api_key="k", base_url=aimock + path)

        completion = await answered(backend, "think", model=model)

        assert completion.message.text == "It is four."

    async def test_a_tool_loop(self, aimock: str, vendor: Vendor, path: str, model: str) -> None:
        backend = vendor(api_key="k", base_url=aimock + path)
        question = Message.user("weather")

        events, _ = await streamed(backend, question, model=model, tools=(WEATHER,))

        asked = completion_in(events)
        call = asked.message.tool_calls[0]
        assert asked.finish_reason is FinishReason.TOOL_CALLS
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        result = Message.tool(call.id, "21")
        said = [question, asked.message, result]
        final = await answered(backend, *said, model=model, tools=(WEATHER,))
        assert final.message.text == "It is 21 degrees."

    async def test_a_rate_limit(self, aimock: str, vendor: Vendor, path: str, model: str) -> None:
        backend = vendor(api_key="k", base_url=aimock + path)

        _, error = await streamed(backend, "limit", model=model)

        assert error is not None
        assert (error.kind, error.status) == (ErrorKind.RATE_LIMITED, 429)

    async def test_a_cut_stream_is_noticed(
        self, aimock: str, vendor: Vendor, path: str, model: str
    ) -> None:
        backend = vendor(api_key="k", base_url=aimock + path)

        events, error = await streamed(backend, "cut", model=model)

        assert error is not None
        assert error.kind is ErrorKind.TRANSPORT
        assert not any(isinstance(event, Finished) for event in events)


class TestAimockOnResponses:
    """The same over the Responses API, which the models asked here want for their tools."""

    @pytest.fixture
    def backend(self, aimock: str) -> OpenAIBackend:
        return OpenAIBackend(api_key="k", api="responses", base_url=f"{aimock}/v1")

    async def test_reasoning_streams_before_the_answer(self, backend: OpenAIBackend) -> None:
        events, error = await streamed(backend, "think", model="gpt-5.4")

        assert error is None
        assert isinstance(events[0], ReasoningDelta)
        completion = completion_in(events)
        assert completion.message.reasoning == "Two and two."
        assert completion.message.text == "It is four."
        assert completion.usage.input_tokens is not None

    async def test_a_whole_answer(self, backend: OpenAIBackend) -> None:
        completion = await answered(backend, "think", model="gpt-5.4")

        assert completion.message.text == "It is four."
        assert completion.message.extra["output_items"][0]["type"] == "reasoning"

    async def test_a_tool_loop(self, aimock: str) -> None:
        backend = OpenAIBackend(api_key="k", base_url=f"{aimock}/v1")
        question = Message.user("weather")

        events, _ = await streamed(backend, question, model="gpt-6-astra", tools=(WEATHER,))

        asked = completion_in(events)
        call = asked.message.tool_calls[0]
        assert asked.finish_reason is FinishReason.TOOL_CALLS
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        said = [question, asked.message, Message.tool(call.id, "21")]
        final = await answered(backend, *said, model="gpt-6-astra", tools=(WEATHER,))
        assert final.message.text == "It is 21 degrees."

    async def test_a_rate_limit(self, backend: OpenAIBackend) -> None:
        _, error = await streamed(backend, "limit", model="gpt-5.4")

        assert error is not None
        assert (error.kind, error.status) == (ErrorKind.RATE_LIMITED, 429)

    async def test_a_cut_stream_is_noticed(self, backend: OpenAIBackend) -> None:
        events, error = await streamed(backend, "cut", model="gpt-5.4")

        assert error is not None
        assert error.kind is ErrorKind.TRANSPORT
        assert not any(isinstance(event, Finished) for event in events)
