"""The Responses API over a socket and a transport: when it is asked, and with what."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Completion, FinishReason, ImagePart, Message, Origin, ToolCall
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, ReasoningDelta, StreamEvent, TextDelta
from agent_context.testing import BackendContract, request_of
from agent_context.tools import Tool
from agent_context_backends.chat_completions import ApiChoice, ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.histories import DEEPSEEK_ITEMS, OPENAI_ITEMS
from tests.support.mock import OK, Recorded
from tests.support.sse_server import CUT, Reply, SseServer, json_reply, sse
from tests.wire.fixtures import payload
from tests.wire.rules import deepseek_refuses, deepseek_refuses_items, item_faults
from tests.wire.test_responses import STREAMS

pytestmark = pytest.mark.anyio

TOOL = Tool(name="f", description="Does it", parameters={"type": "object", "properties": {}})
ANSWER = STREAMS["openai-answer"][-1]["response"] | {
    "output": [
        event["item"]
        for event in STREAMS["openai-answer"]
        if event["type"] == "response.output_item.done"
    ]
}
ENCRYPTED = {"store": False, "include": ["reasoning.encrypted_content"]}


def openai(transport: httpx.AsyncBaseTransport, **options: Any) -> OpenAIBackend:
    return OpenAIBackend(api_key="sk-x", transport=transport, **options)


async def body_of(
    backend: ChatCompletionsBackend, server: Recorded, *messages: Message, **options: Any
) -> dict[str, Any]:
    said = messages or (Message.user("q"),)
    await backend.send(request_of(backend, *said, options=SendOptions(**options)))
    return server.body


@pytest.fixture
def server() -> Recorded:
    return Recorded(ANSWER)


@pytest.mark.parametrize(
    ("model", "options", "path"),
    [
        ("gpt-5.4", {}, "chat/completions"),
        ("gpt-5.4", {"tools": (TOOL,)}, "chat/completions"),
        ("gpt-5.4", {"tools": (TOOL,), "effort": "none"}, "chat/completions"),
        ("gpt-5.4", {"effort": "high"}, "chat/completions"),
        ("gpt-5.4", {"tools": (TOOL,), "effort": "high"}, "responses"),
        ("gpt-5.4", {"tools": (TOOL,), "thinking": True}, "responses"),
        ("gpt-5.2", {"tools": (TOOL,), "effort": "high"}, "chat/completions"),
        ("gpt-4.1", {"tools": (TOOL,)}, "chat/completions"),
        ("gpt-5.6-terra", {"tools": (TOOL,)}, "responses"),
        ("gpt-5.6-terra", {"tools": (TOOL,), "thinking": False}, "chat/completions"),
        ("gpt-6-astra", {}, "chat/completions"),
        ("gpt-6-astra", {"tools": (TOOL,)}, "responses"),
        ("gpt-6.2-astra", {"tools": (TOOL,), "effort": "low"}, "responses"),
        ("somebody-elses", {"tools": (TOOL,), "effort": "high"}, "chat/completions"),
    ],
)
async def test_the_api_follows_from_the_model_and_the_options(
    model: str, options: dict[str, Any], path: str
) -> None:
    answer = ANSWER if path == "responses" else OK
    server = Recorded(answer)

    await body_of(openai(server), server, model=model, **options)

    assert str(server.requests[0].url) == f"https://api.openai.com/v1/{path}"


async def test_an_api_is_one_of_three(server: Recorded) -> None:
    with pytest.raises(InvalidOptions, match="auto, chat, responses"):
        openai(server, api="completions")


async def test_a_request(server: Recorded) -> None:
    options: dict[str, Any] = {"tools": (TOOL,), "effort": "high", "max_tokens": 5}

    body = await body_of(openai(server), server, **options)

    assert body == {
        "model": "gpt-5.4",
        **ENCRYPTED,
        "tools": [
            {
                "type": "function",
                "name": "f",
                "description": "Does it",
                "parameters": {"type": "object", "properties": {}},
                "strict": False,
            }
        ],
        "reasoning": {"effort": "high"},
        "input": [{"role": "user", "content": "q"}],
        "max_output_tokens": 5,
    }
    assert list(body)[-2:] == ["input", "max_output_tokens"]


SCHEMA = {"name": "n", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("make", "model", "options", "expected"),
    [
        (OpenAIBackend, "gpt-4.1", {"temperature": 0.2}, {"store": False, "temperature": 0.2}),
        (OpenAIBackend, "gpt-5.4", {"thinking": False}, {"reasoning": {"effort": "none"}}),
        (OpenAIBackend, "gpt-6-astra", {"effort": "max"}, {"reasoning": {"effort": "max"}}),
        (
            OpenAIBackend,
            "gpt-5.4",
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            {"text": {"format": {"type": "json_schema", **SCHEMA}}},
        ),
        (
            OpenAIBackend,
            "gpt-5.4",
            {"response_format": {"type": "json_object"}, "extra": {"text": {"verbosity": "low"}}},
            {"text": {"format": {"type": "json_object"}, "verbosity": "low"}},
        ),
        (
            OpenAIBackend,
            "gpt-5.4",
            {"effort": "low", "extra": {"reasoning": {"summary": "auto"}, "include": ["x"]}},
            {
                "reasoning": {"effort": "low", "summary": "auto"},
                "include": ["reasoning.encrypted_content", "x"],
            },
        ),
        (
            OpenAIBackend,
            "gpt-5.4",
            {"tools": (TOOL,), "tool_choice": "f"},
            {"tool_choice": {"type": "function", "name": "f"}},
        ),
        (
            OpenAIBackend,
            "gpt-5.4",
            {
                "tools": (TOOL,),
                "tool_choice": {"type": "function", "function": {"name": "f"}},
            },
            {"tool_choice": {"type": "function", "name": "f"}},
        ),
        (DeepSeekBackend, "deepseek-flash", {"thinking": True}, {"store": False}),
        (DeepSeekBackend, "deepseek-flash", {"effort": "max"}, {"reasoning": {"effort": "max"}}),
        (DeepSeekBackend, "deepseek-flash", {"thinking": False}, {"reasoning": {"effort": "none"}}),
        (
            DeepSeekBackend,
            "deepseek-v4-pro",
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            {"text": {"format": {"type": "json_schema", **SCHEMA}}},
        ),
        (ZhipuBackend, "glm-5.2", {"effort": "none"}, {"reasoning": {"effort": "none"}}),
        (ZhipuBackend, "glm-5.3", {"effort": "medium"}, {"reasoning": {"effort": "high"}}),
    ],
)
async def test_options_in_its_words(
    server: Recorded,
    make: type[ChatCompletionsBackend],
    model: str,
    options: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    backend = make(api_key="k", api="responses", transport=server)

    body = await body_of(backend, server, model=model, **options)

    assert {name: body[name] for name in expected} == expected
    assert not {"thinking", "reasoning_effort", "response_format", "max_tokens"} & body.keys()


@pytest.mark.parametrize(
    ("make", "options", "advice"),
    [
        (OpenAIBackend, {"stop": "x"}, "api='chat'"),
        (OpenAIBackend, {"seed": 1}, "api='chat'"),
        (OpenAIBackend, {"effort": "high", "temperature": 0.5}, "while it thinks"),
        (OpenAIBackend, {"extra": {"previous_response_id": "r"}}, "previous_response_id"),
        (OpenAIBackend, {"extra": {"input": []}}, "input"),
        (DeepSeekBackend, {"temperature": 0.5}, "thinking=False"),
        (DeepSeekBackend, {"tools": (TOOL,), "tool_choice": "required"}, "thinking=False"),
        (ZhipuBackend, {"tools": (TOOL,), "tool_choice": "f"}, "auto"),
        (ZhipuBackend, {"model": "glm-4.7", "thinking": False}, "api='chat'"),
        (ZhipuBackend, {"response_format": {"type": "json_schema"}}, "json_object"),
    ],
)
async def test_what_it_would_refuse_or_ignore_is_refused_before(
    server: Recorded, make: type[ChatCompletionsBackend], options: dict[str, Any], advice: str
) -> None:
    with pytest.raises(InvalidOptions, match=advice):
        await body_of(make(api_key="k", api="responses", transport=server), server, **options)

    assert server.requests == []


@pytest.mark.parametrize(
    ("make", "options", "url"),
    [
        (DeepSeekBackend, {}, "https://api.deepseek.com/responses"),
        (ZhipuBackend, {}, "https://open.bigmodel.cn/api/v1/responses"),
        (
            ZhipuBackend,
            {"base_url": "https://api.z.ai/api/paas/v4"},
            "https://api.z.ai/api/v1/responses",
        ),
        (ZhipuBackend, {"base_url": "http://x/v1"}, "http://x/v1/responses"),
        (ChatCompletionsBackend, {"base_url": "http://x/v1"}, "http://x/v1/responses"),
    ],
)
async def test_where_it_is(
    server: Recorded, make: type[ChatCompletionsBackend], options: dict[str, Any], url: str
) -> None:
    backend = make(api_key="k", api="responses", transport=server, **options)

    await body_of(backend, server, model="m")

    assert str(server.requests[0].url) == url


async def test_models_of_a_user_can_be_asked_there_too(server: Recorded) -> None:
    mine = {"mine": ModelFacts(context_window=9_000, max_output=900)}

    body = await body_of(
        openai(server, api="responses", models=mine), server, model="mine", effort="high"
    )

    assert body["reasoning"] == {"effort": "high"}


class Moving(httpx.MockTransport):
    """Chat completions that say that the request belongs elsewhere; and that elsewhere."""

    def __init__(self, refusal: str) -> None:
        self.paths: list[str] = []
        self._refusal = payload(refusal)
        super().__init__(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        if request.url.path.endswith("/chat/completions"):
            return httpx.Response(self._refusal["status"], json=self._refusal["body"])
        if b'"stream":true' in request.content:
            return httpx.Response(200, content=b"".join(sse(*STREAMS["openai-answer"], done=False)))
        return httpx.Response(200, json=ANSWER)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_that_says_so_is_asked_there_from_then_on(*, stream: bool) -> None:
    server = Moving("oa-tools-reasoning-400")
    backend = openai(server)
    request = request_of(backend, Message.user("q"), options=SendOptions(model="gpt-99"))

    for _ in range(2):
        assert (await answer_of(backend, request, stream=stream)).message.text

    assert server.paths == ["/v1/chat/completions", "/v1/responses", "/v1/responses"]


async def answer_of(backend: ChatCompletionsBackend, request: Any, *, stream: bool) -> Completion:
    if not stream:
        return await backend.send(request)
    events = [event async for event in backend.send_stream(request)]
    assert isinstance(events[-1], Finished)
    return events[-1].completion


@pytest.mark.parametrize(
    ("refusal", "options"),
    [("oa-tools-reasoning-400", {"api": "chat"}), ("ds-reasoning-missing", {})],
)
async def test_any_other_refusal_is_one(refusal: str, options: dict[str, Any]) -> None:
    server = Moving(refusal)

    with pytest.raises(BackendError):
        await openai(server, **options).send(request_of(openai(server), Message.user("q")))

    assert server.paths == ["/v1/chat/completions"]


async def streamed(backend: ChatCompletionsBackend) -> list[StreamEvent]:
    try:
        request = request_of(backend, Message.user("q"), options=SendOptions(model="gpt-5.6-sol"))
        return [event async for event in backend.send_stream(request)]
    finally:
        await backend.aclose()


async def test_a_stream_over_a_socket() -> None:
    reply = Reply(sse(*STREAMS["openai-answer"], done=False))

    async with SseServer([reply]) as server:
        events = await streamed(OpenAIBackend(api_key="k", api="responses", base_url=server.url))

    assert events[0] == ReasoningDelta("First")
    assert TextDelta("Let me ") in events
    assert isinstance(events[-1], Finished)
    assert events[-1].completion.finish_reason is FinishReason.STOP
    body = server.requests[0].json
    assert body["stream"] is True
    assert "stream_options" not in body
    assert server.requests[0].path == "/responses"


@pytest.mark.parametrize("make", [OpenAIBackend, DeepSeekBackend])
async def test_a_stream_needs_no_done(make: type[ChatCompletionsBackend]) -> None:
    reply = Reply(sse(*STREAMS["deepseek-call"], done=False))

    async with SseServer([reply]) as server:
        events = await streamed(make(api_key="k", api="responses", base_url=server.url))

    assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("end", [[], [CUT]])
async def test_a_stream_without_its_end_is_an_error(end: list[Any]) -> None:
    steps = sse(*STREAMS["openai-answer"][:-1], done=False)

    async with SseServer([Reply([*steps, *end])]) as server:
        with pytest.raises(BackendError) as caught:
            await streamed(OpenAIBackend(api_key="k", api="responses", base_url=server.url))

    assert (caught.value.kind, caught.value.retryable) == (ErrorKind.TRANSPORT, True)


async def test_a_server_may_answer_a_stream_with_one_object() -> None:
    async with SseServer([json_reply(ANSWER)]) as server:
        events = await streamed(OpenAIBackend(api_key="k", api="responses", base_url=server.url))

    assert isinstance(events[-1], Finished)


async def test_the_next_request_begins_with_the_bytes_of_the_last(server: Recorded) -> None:
    backend = openai(server, api="responses")
    answer = await backend.send(request_of(backend, Message.user("q")))

    await body_of(backend, server, Message.user("q"), answer.message, Message.user("r"))

    first, second = (request.content for request in server.requests)
    assert second.startswith(first.removesuffix(b"]}"))
    sent = json.loads(second)["input"]
    assert sent[1:4] == ANSWER["output"]


LOOP_AT_DEEPSEEK = [
    Message.user("q"),
    Message.assistant(
        "let me see", reasoning="secret", tool_calls=[ToolCall(id="call_00_a", name="f")]
    ).model_copy(update={"origin": Origin(vendor="deepseek", model="deepseek-flash")}),
    Message.tool("call_00_a", "1"),
    Message.assistant("one", reasoning="more").model_copy(
        update={"origin": Origin(vendor="deepseek", model="deepseek-flash")}
    ),
    Message.user("and two?"),
]


async def test_a_vendor_may_change_in_mid_talk_and_back() -> None:
    called = STREAMS["deepseek-call"][-1]["response"]
    sealed = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    output = [sealed, {**called["output"][1], "call_id": "call_00_a"}]
    server = Recorded(called | {"output": output})
    there = openai(server)

    body = await body_of(there, server, *LOOP_AT_DEEPSEEK, model="gpt-6-astra", tools=(TOOL,))
    answer = await there.send(
        request_of(
            there, *LOOP_AT_DEEPSEEK, options=SendOptions(model="gpt-6-astra", tools=(TOOL,))
        )
    )

    assert "secret" not in json.dumps(body)
    assert item_faults(body["input"], OPENAI_ITEMS) == []
    talk = [*LOOP_AT_DEEPSEEK, answer.message, Message.tool("call_00_a", "2"), Message.user("ok")]
    body = await body_of(there, server, *talk, model="gpt-6-astra", tools=(TOOL,))
    assert item_faults(body["input"], OPENAI_ITEMS) == []
    assert sealed in body["input"]
    await back_at_deepseek(talk)


async def back_at_deepseek(talk: list[Message]) -> None:
    apis: tuple[ApiChoice, ...] = ("responses", "chat")
    for api in apis:
        server = Recorded(ANSWER if api == "responses" else OK)
        backend = DeepSeekBackend(api_key="k", api=api, transport=server)

        text = json.dumps(body := await body_of(backend, server, *talk, tools=(TOOL,)))

        assert "secret" in text
        assert "gAAA" not in text
        if api == "chat":
            assert deepseek_refuses(body["messages"]) is None
        else:
            assert item_faults(body["input"], DEEPSEEK_ITEMS) == []
            assert deepseek_refuses_items(body["input"]) is None


async def test_what_is_sent_has_the_types_of_the_openai_package(server: Recorded) -> None:
    params = pytest.importorskip("openai.types.responses.response_create_params")
    backend = openai(server, api="responses")
    answer = await backend.send(request_of(backend, Message.user("q")))
    image = ImagePart(url="https://example.org/x.png", width=8)
    talk = [Message.system("s"), Message.user(["look", image]), *LOOP_AT_DEEPSEEK, answer.message]

    body = await body_of(
        backend,
        server,
        *talk,
        tools=(TOOL,),
        tool_choice="f",
        effort="high",
        max_tokens=9,
        response_format={"type": "json_schema", "json_schema": SCHEMA},
    )

    kind = params.ResponseCreateParamsNonStreaming
    adapter = TypeAdapter(kind)
    checked = adapter.validate_python(body)
    assert len(list(checked["tools"])) == 1
    assert body.keys() <= kind.__required_keys__ | kind.__optional_keys__
    with pytest.raises(ValueError, match="input"):
        adapter.validate_python(body | {"input": [{"role": "nobody", "content": "x"}]})


async def test_the_openai_package_reads_the_streams_that_the_tests_use() -> None:
    client_of = pytest.importorskip("openai").AsyncOpenAI
    reply = Reply(sse(*STREAMS["openai-answer"], done=False))

    async with (
        SseServer([reply]) as server,
        client_of(api_key="k", base_url=server.url, max_retries=0) as client,
    ):
        stream = await client.responses.create(model="m", input="q", stream=True)
        kinds = [event.type async for event in stream]

    assert kinds == [event["type"] for event in STREAMS["openai-answer"]]


def serve(request: httpx.Request) -> httpx.Response:
    if b'"stream":true' in request.content:
        return httpx.Response(200, content=b"".join(sse(*STREAMS["openai-answer"], done=False)))
    return httpx.Response(200, json=ANSWER)


def refuse(request: httpx.Request) -> httpx.Response:
    return httpx.Response(400, json={"error": {"message": "no", "type": "invalid_request_error"}})


class OnResponses(BackendContract):
    make: Callable[..., ChatCompletionsBackend]

    def make_backend(self) -> ChatCompletionsBackend:
        transport = httpx.MockTransport(serve)
        return type(self).make(api_key="k", api="responses", transport=transport)

    def make_failing_backend(self) -> ChatCompletionsBackend:
        transport = httpx.MockTransport(refuse)
        return type(self).make(api_key="k", api="responses", transport=transport)


class TestOpenAI(OnResponses):
    make = OpenAIBackend


class TestDeepSeek(OnResponses):
    make = DeepSeekBackend


class TestZhipu(OnResponses):
    make = ZhipuBackend


def test_answers_of_both_apis_are_extracted_and_classified(server: Recorded) -> None:
    backend = openai(server)

    assert [message.text for message in backend.extract_messages(OK)] == ["ok"]
    assert [message.text for message in backend.extract_messages(ANSWER)] == ["Let me see\n\nFour"]
    event = {"type": "response.output_text.delta", "output_index": 0, "delta": "a"}
    assert backend.classify_chunk(event) == (TextDelta("a"),)
