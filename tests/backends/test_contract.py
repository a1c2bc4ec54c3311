"""The contract suite, run on every backend of ours."""

from collections.abc import AsyncIterator
from typing import ClassVar

import httpx
import orjson
import pytest

from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamEvent, TextDelta
from agent_context.testing import BackendContract
from agent_context_backends.anthropic import AnthropicBackend
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.openai_compatible import (
    KimiBackend,
    LlamaCppBackend,
    LMStudioBackend,
    OllamaBackend,
    OpenRouterBackend,
    QwenBackend,
    VllmBackend,
)
from agent_context_backends.scripted import ScriptedBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.support.mock import OK
from tests.support.sse_server import answer

CHUNKS = b"".join(step for step in answer("He", "llo").steps if isinstance(step, bytes))
REFUSED = {"error": {"message": "no", "type": "invalid_request_error"}}


def serve(request: httpx.Request) -> httpx.Response:
    if b'"stream":true' in request.content:
        return httpx.Response(200, content=CHUNKS)
    return httpx.Response(200, json=OK)


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-6",
    "content": [{"type": "text", "text": "Hello"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
EVENTS = (
    {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "He"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "llo"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
    {"type": "message_stop"},
)


def serve_blocks(request: httpx.Request) -> httpx.Response:
    if b'"stream":true' in request.content:
        stream = b"".join(b"data: %s\n\n" % orjson.dumps(event) for event in EVENTS)
        return httpx.Response(200, content=stream)
    return httpx.Response(200, json=MESSAGE)


def refuse(request: httpx.Request) -> httpx.Response:
    return httpx.Response(400, json=REFUSED)


class OverHttp(BackendContract):
    backend: type[ChatCompletionsBackend]

    def make_backend(self) -> ContextBackend:
        return self.backend(api_key="k", transport=httpx.MockTransport(serve))

    def make_failing_backend(self) -> ContextBackend:
        return self.backend(api_key="k", transport=httpx.MockTransport(refuse))


class TestDeepSeek(OverHttp):
    backend = DeepSeekBackend


class TestOpenAI(OverHttp):
    backend = OpenAIBackend


class TestZhipu(OverHttp):
    backend = ZhipuBackend


class TestAnthropic(OverHttp):
    backend = AnthropicBackend

    def make_backend(self) -> ContextBackend:
        return AnthropicBackend(api_key="k", transport=httpx.MockTransport(serve_blocks))


class TestKimi(OverHttp):
    backend = KimiBackend


class TestQwen(OverHttp):
    backend = QwenBackend


class OnOwnMachine(OverHttp):
    options: ClassVar[SendOptions] = SendOptions(model="m", max_tokens=64)


class TestVllm(OnOwnMachine):
    backend = VllmBackend


class TestOllama(OnOwnMachine):
    backend = OllamaBackend


class TestLlamaCpp(OverHttp):
    backend = LlamaCppBackend


class TestLMStudio(OnOwnMachine):
    backend = LMStudioBackend


class TestOpenRouter(OverHttp):
    backend = OpenRouterBackend


class TestScripted(BackendContract):
    def make_backend(self) -> ContextBackend:
        return ScriptedBackend(["Hello there"])

    def make_failing_backend(self) -> ContextBackend:
        return ScriptedBackend([BackendError("no", vendor="scripted")])


class Echo(ContextBackend):
    """What a user may write: two methods and nothing else."""

    async def send(self, request: Request) -> Completion:
        return Completion(message=Message.assistant(request.records[-1].message.text))

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        yield TextDelta((await self.send(request)).message.text)


class TestOwn(BackendContract):
    def make_backend(self) -> ContextBackend:
        return Echo()


class Talkative(Echo):
    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        yield Finished(await self.send(request))
        yield TextDelta("and another thing")


def test_the_contract_notices_a_stream_that_goes_on_after_its_end() -> None:
    class Broken(BackendContract):
        def make_backend(self) -> ContextBackend:
            return Talkative()

    with pytest.raises(AssertionError):
        Broken().test_nothing_follows_finished()
