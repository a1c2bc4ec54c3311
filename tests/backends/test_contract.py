"""The contract suite, run on every backend of ours."""

from collections.abc import AsyncIterator

import httpx
import pytest

from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError
from agent_context.messages import Completion, Message, Origin
from agent_context.stream_events import Finished, StreamEvent, TextDelta
from agent_context.testing import BackendContract
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
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


class TestScripted(BackendContract):
    def make_backend(self) -> ContextBackend:
        return ScriptedBackend(["Hello there"])

    def make_failing_backend(self) -> ContextBackend:
        return ScriptedBackend([BackendError("no", vendor="scripted")])


class Echo(ContextBackend):
    """What a user may write: two methods and nothing else."""

    async def send(self, request: Request) -> Completion:
        message = Message.assistant(request.records[-1].message.text)
        origin = Origin(vendor=self.vendor)
        finish = Completion(message=message).finish_reason
        return Completion(
            message=message.model_copy(update={"origin": origin, "finish_reason": finish})
        )

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        completion = await self.send(request)
        yield TextDelta(completion.message.text)
        yield Finished(completion)


class TestOwn(BackendContract):
    def make_backend(self) -> ContextBackend:
        return Echo()


class Mute(Echo):
    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        yield TextDelta("and then nothing")


def test_the_contract_notices_a_stream_without_an_end() -> None:
    class Broken(BackendContract):
        def make_backend(self) -> ContextBackend:
            return Mute()

    with pytest.raises(AssertionError):
        Broken().test_a_stream_ends_with_finished_and_nothing_follows()
