"""Compatible servers: every way in which one of them is known to be different."""

import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from agent_context.backend import ContextBackend
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Completion, FinishReason, ImagePart, Message, Origin, ToolCall
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamEvent
from agent_context.testing import BackendContract, request_of
from agent_context.tools import Tool
from agent_context_backends._endpoints import CHAT, Api
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
)
from agent_context_backends.local import LocalBackend
from agent_context_backends.openai_compatible import (
    KimiBackend,
    LlamaCppBackend,
    LMStudioBackend,
    OllamaBackend,
    OpenRouterBackend,
    QwenBackend,
    VllmBackend,
)
from tests.support.local_model import needs_model
from tests.support.mock import OK, Recorded, sent
from tests.support.sse_server import Reply, SseServer, sse

pytestmark = pytest.mark.anyio

TOOL = Tool(name="f")
Backend = type[ChatCompletionsBackend]
ALL: list[Backend] = [
    KimiBackend,
    QwenBackend,
    VllmBackend,
    OllamaBackend,
    LlamaCppBackend,
    LMStudioBackend,
    OpenRouterBackend,
]
ON_OWN_MACHINE = [VllmBackend, OllamaBackend, LlamaCppBackend, LMStudioBackend]


def delta(reason: str | None = None, /, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


async def streamed(backend_type: Backend, *steps: bytes) -> tuple[list[StreamEvent], Completion]:
    async with SseServer([Reply(list(steps))]) as server:
        backend = backend_type(api_key="k", base_url=server.url)
        request = request_of(backend, Message.user("q"), options=SendOptions(model="m"))
        try:
            *events, last = [event async for event in backend.send_stream(request)]
        finally:
            await backend.aclose()
    assert isinstance(last, Finished)
    return events, last.completion


async def body_of(
    backend_type: Backend, *messages: Message, base_url: str | None = None, **options: Any
) -> dict[str, Any]:
    whole = httpx.MockTransport(lambda request: httpx.Response(200, json=OK))
    server = Recorded()
    whole.handler = lambda request: (server._handle(request), httpx.Response(200, json=OK))[1]
    backend = backend_type(api_key="k", base_url=base_url, transport=whole)
    said = messages or (Message.user("q"),)
    options = {"model": backend.default_model or "m", **options}
    await backend.send(request_of(backend, *said, options=SendOptions(**options)))
    return server.body


async def refused(backend_type: Backend, status: int, body: object) -> BackendError:
    backend = backend_type(api_key="k", transport=Recorded(body, status=status))
    with pytest.raises(BackendError) as caught:
        await sent(backend, Recorded(), model="m")
    return caught.value


@pytest.mark.parametrize(
    ("backend_type", "url"),
    [
        (KimiBackend, "https://api.moonshot.ai/v1"),
        (QwenBackend, "https://dashscope.aliyuncs.com/compatible-mode/v1"),
        (VllmBackend, "http://localhost:8000/v1"),
        (OllamaBackend, "http://localhost:11434/v1"),
        (LlamaCppBackend, "http://localhost:8080/v1"),
        (LMStudioBackend, "http://localhost:1234/v1"),
        (OpenRouterBackend, "https://openrouter.ai/api/v1"),
    ],
)
def test_each_has_its_address(backend_type: Backend, url: str) -> None:
    assert backend_type(api_key="k").base_url == url


@pytest.mark.parametrize(
    ("backend_type", "name"),
    [
        (KimiBackend, "MOONSHOT_API_KEY"),
        (KimiBackend, "MOONSHOTAI_API_KEY"),
        (QwenBackend, "DASHSCOPE_API_KEY"),
        (OpenRouterBackend, "OPENROUTER_API_KEY"),
    ],
)
async def test_keys_come_from_the_environment(
    backend_type: Backend, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidOptions, match=name):
        backend_type()
    monkeypatch.setenv(name, "sk-env")

    _, headers = await backend_type().address()

    assert headers["authorization"] == "Bearer sk-env"


@pytest.mark.parametrize("backend_type", ON_OWN_MACHINE)
async def test_a_server_of_one_s_own_needs_no_key(backend_type: Backend) -> None:
    _, headers = await backend_type().address()

    assert "authorization" not in headers


def test_each_can_be_found_by_its_name() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    points = tomllib.loads(project.read_text("utf-8"))["project"]["entry-points"]
    found = points["agent_context.backends"]

    for backend_type in ALL:
        module, _, name = found[backend_type.vendor].partition(":")
        assert getattr(import_module(module), name) is backend_type


ON, OFF = {"type": "enabled"}, {"type": "disabled"}
THINK, DONT = ({"chat_template_kwargs": {"enable_thinking": on}} for on in (True, False))


@pytest.mark.parametrize(
    ("backend_type", "options", "expected"),
    [
        (KimiBackend, {"max_tokens": 5}, {"max_tokens": 5}),
        (KimiBackend, {"effort": "medium"}, {"reasoning_effort": "high"}),
        (KimiBackend, {"thinking": True}, {}),
        (KimiBackend, {"model": "kimi-k2.6", "thinking": False}, {"thinking": OFF}),
        (KimiBackend, {"model": "kimi-k2.5", "effort": "none"}, {"thinking": OFF}),
        (QwenBackend, {"thinking": True}, {"enable_thinking": True}),
        (QwenBackend, {"effort": "none"}, {"enable_thinking": False}),
        (QwenBackend, {"extra": {"thinking_budget": 9}}, {"thinking_budget": 9}),
        (VllmBackend, {"thinking": False}, DONT),
        (VllmBackend, {"effort": "none"}, DONT),
        (VllmBackend, {"thinking": True, "effort": "high"}, {**THINK, "reasoning_effort": "high"}),
        (LlamaCppBackend, {"thinking": True}, THINK),
        (OllamaBackend, {"thinking": False}, {"reasoning_effort": "none"}),
        (LMStudioBackend, {"effort": "low"}, {"reasoning_effort": "low"}),
        (OpenRouterBackend, {"thinking": True}, {"reasoning": {"enabled": True}}),
        (OpenRouterBackend, {"effort": "high"}, {"reasoning": {"effort": "high"}}),
    ],
)
async def test_options_in_each_one_s_words(
    backend_type: Backend, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = await body_of(backend_type, **options)

    always = {"messages", "model", "stream", "stream_options"}
    assert {name: value for name, value in body.items() if name not in always} == expected


CODING = "https://api.kimi.com/coding/v1"


@pytest.mark.parametrize(
    ("backend_type", "options", "advice"),
    [
        (KimiBackend, {"tools": (TOOL,), "tool_choice": "required"}, "'auto'"),
        (KimiBackend, {"effort": "none"}, "always thinks"),
        (KimiBackend, {"thinking": False}, "always thinks"),
        (KimiBackend, {"model": "kimi-k2.6", "effort": "high"}, "kimi-k3"),
        (KimiBackend, {"tools": (Tool(name="f", strict=True),)}, "leave strict out"),
        (KimiBackend, {"base_url": CODING, "temperature": 0.5}, "only 1"),
        (QwenBackend, {"effort": "high"}, "thinking_budget"),
        (
            QwenBackend,
            {"thinking": True, "tools": (TOOL,), "tool_choice": "required"},
            "thinking=False",
        ),
        (QwenBackend, {"thinking": True, "tools": (TOOL,), "tool_choice": TOOL.name}, "force"),
        (
            QwenBackend,
            {"thinking": True, "response_format": {"type": "json_object"}},
            "formats text while it thinks",
        ),
        (OllamaBackend, {"tools": (TOOL,), "tool_choice": "required"}, "would be ignored"),
        (OllamaBackend, {"tools": (Tool(name="f", strict=True),)}, "leave strict out"),
        (LMStudioBackend, {"thinking": True}, "where the model is loaded"),
    ],
)
async def test_what_each_would_refuse_or_ignore_is_refused_before(
    backend_type: Backend, options: dict[str, Any], advice: str
) -> None:
    with pytest.raises(InvalidOptions, match=advice):
        await body_of(backend_type, **options)


async def test_qwen_is_asked_for_a_stream_even_for_a_whole_answer() -> None:
    body = await body_of(QwenBackend)

    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("backend_type", [VllmBackend, LlamaCppBackend, LMStudioBackend])
async def test_the_only_system_message_is_the_first(backend_type: Backend) -> None:
    said = [Message.system("1"), Message.system("2"), Message.user("q"), Message.assistant("a")]

    body = await body_of(backend_type, *said, Message.system("late"))

    assert [(each["role"], each["content"]) for each in body["messages"]] == [
        ("system", "1\n\n2"),
        ("user", "q"),
        ("assistant", "a"),
        ("user", "late"),
    ]


@pytest.mark.parametrize("backend_type", ALL)
async def test_no_developer_speaks_to_them(backend_type: Backend) -> None:
    message = Message.model_validate({"role": "developer", "content": "s"})

    body = await body_of(backend_type, message, Message.user("q"))

    assert body["messages"][0]["role"] == "system"


async def test_ollama_is_given_images_as_data_alone() -> None:
    images = [ImagePart(url="https://x/y.png"), ImagePart(url="data:image/png;base64,AAAA")]

    body = await body_of(OllamaBackend, Message.user(images))

    assert [part["type"] for part in body["messages"][0]["content"]] == ["text", "image_url"]


def test_facts_of_one_s_own_take_away_and_add_nothing() -> None:
    blind = ChatFacts(context_window=8_192, max_output=512, accepts=ParameterSupport(images=False))

    dialect = OllamaBackend(models={"blind": blind}).dialect_for("blind")

    assert (dialect.images, dialect.other_parts) == (False, frozenset())


def thought(vendor: str, **extra: Any) -> Message:
    message = Message.assistant(tool_calls=[ToolCall(id="c", name="f")], reasoning="so")
    return message.model_copy(update={"origin": Origin(vendor=vendor), **extra})


DETAILS = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]


@pytest.mark.parametrize(
    ("backend_type", "expected"),
    [
        (KimiBackend, {"reasoning_content": "so"}),
        (OpenRouterBackend, {"reasoning": "so", "reasoning_details": DETAILS}),
        (QwenBackend, {}),
        (VllmBackend, {}),
    ],
)
async def test_reasoning_goes_back_where_it_is_wanted(
    backend_type: Backend, expected: dict[str, Any]
) -> None:
    vendor = backend_type.vendor
    extra = {"reasoning_details": DETAILS} if vendor == "openrouter" else {}
    messages = [Message.user("q"), thought(vendor, **extra), Message.tool("c", "1")]

    body = await body_of(backend_type, *messages)

    always = {"role", "content", "tool_calls"}
    found = {name: value for name, value in body["messages"][1].items() if name not in always}
    assert found == expected


@pytest.mark.parametrize("vendor", ["kimi", "openai"])
async def test_kimi_finds_reasoning_with_every_call(vendor: str) -> None:
    unthought = thought(vendor).model_copy(update={"reasoning": None})
    foreign = thought("openai")
    messages = [Message.user("q"), unthought, Message.tool("c", "1"), foreign]

    body = await body_of(KimiBackend, *messages, Message.tool("c", "2"))

    found = [one["reasoning_content"] for one in body["messages"] if one["role"] == "assistant"]
    assert found == [" ", " "]


@pytest.mark.parametrize(
    ("backend_type", "field"),
    [
        (KimiBackend, "reasoning_content"),
        (QwenBackend, "reasoning_content"),
        (VllmBackend, "reasoning"),
        (VllmBackend, "reasoning_content"),
        (OllamaBackend, "reasoning"),
        (LlamaCppBackend, "reasoning_content"),
        (LMStudioBackend, "reasoning"),
        (OpenRouterBackend, "reasoning"),
    ],
)
async def test_each_one_s_reasoning_is_read(backend_type: Backend, field: str) -> None:
    steps = sse(delta(**{field: "so"}), delta(content="a"), delta("stop"))

    _, completion = await streamed(backend_type, *steps)

    assert (completion.message.reasoning, completion.message.text) == ("so", "a")


async def test_vllm_may_say_its_reasoning_under_both_names() -> None:
    chunk = delta(reasoning="so", reasoning_content="so")

    _, completion = await streamed(VllmBackend, *sse(chunk, delta("stop", content="a")))

    assert completion.message.reasoning == "so"


@pytest.mark.parametrize(
    ("backend_type", "comment"),
    [(OpenRouterBackend, b": OPENROUTER PROCESSING\n\n"), (LlamaCppBackend, b":\n\n")],
)
async def test_comments_are_no_answer(backend_type: Backend, comment: bytes) -> None:
    steps = sse(delta(role="assistant", content=""), delta("stop", role="assistant", content="a"))

    events, completion = await streamed(backend_type, comment, comment, *steps)

    assert len(events) == 1
    assert completion.message.text == "a"


@pytest.mark.parametrize("id", ["", None])
async def test_ollama_s_calls_come_whole_and_without_an_id(id: str | None) -> None:
    call = {"id": id, "function": {"name": "f", "arguments": '{"a":1}'}}

    _, completion = await streamed(OllamaBackend, *sse(delta(tool_calls=[call])))

    assert completion.finish_reason is FinishReason.TOOL_CALLS
    assert completion.message.tool_calls[0].id
    assert completion.message.tool_calls[0].arguments == '{"a":1}'


USAGE = {"prompt_tokens": 9, "completion_tokens": 1}


@pytest.mark.parametrize(
    ("backend_type", "last", "cached"),
    [
        (KimiBackend, {"choices": [{"delta": {}, "usage": {**USAGE, "cached_tokens": 4}}]}, 4),
        (KimiBackend, {"choices": [], "usage": {**USAGE, "cached_tokens": 4}}, 4),
        (LlamaCppBackend, {"choices": [], "usage": USAGE, "timings": {"cache_n": 7}}, 7),
        (VllmBackend, {"choices": [], "usage": {**USAGE, "prompt_tokens_details": None}}, None),
        (OllamaBackend, {"choices": [], "usage": USAGE}, None),
    ],
)
async def test_what_each_says_of_its_cache(
    backend_type: Backend, last: dict[str, Any], cached: int | None
) -> None:
    _, completion = await streamed(backend_type, *sse(delta("stop", content="a"), last))

    assert (completion.usage.input_tokens, completion.usage.cached_tokens) == (9, cached)


async def test_openrouter_s_reasoning_details_are_joined_and_kept() -> None:
    first = {"type": "reasoning.text", "text": "Let ", "index": 0, "signature": None}
    more = {"type": "reasoning.text", "text": "me", "index": 0, "signature": "sig"}
    sealed = {"type": "reasoning.encrypted", "data": "xyz", "index": 1}
    steps = sse(
        delta(reasoning="Let ", reasoning_details=[first]),
        delta(reasoning="me", reasoning_details=[more, sealed]),
        delta("stop", content="a"),
    )

    _, completion = await streamed(OpenRouterBackend, *steps)

    assert completion.message.reasoning == "Let me"
    assert completion.message.extra["reasoning_details"] == [
        {"type": "reasoning.text", "text": "Let me", "index": 0, "signature": "sig"},
        sealed,
    ]


@pytest.mark.parametrize(
    ("backend_type", "error", "kind", "status"),
    [
        (VllmBackend, {"message": "TimeoutError", "code": 504}, ErrorKind.OVERLOADED, 504),
        (OpenRouterBackend, {"message": "no", "code": 429}, ErrorKind.RATE_LIMITED, 429),
        (
            OpenRouterBackend,
            {"message": "no", "code": 403, "metadata": {"reasons": ["x"]}},
            ErrorKind.CONTENT_FILTERED,
            403,
        ),
    ],
)
async def test_an_error_in_a_stream_ends_it(
    backend_type: Backend, error: dict[str, Any], kind: ErrorKind, status: int
) -> None:
    steps = sse(delta(content="a"), {**delta("error", content=""), "error": error})

    with pytest.raises(BackendError) as caught:
        await streamed(backend_type, *steps)

    assert (caught.value.kind, caught.value.status) == (kind, status)


def said(message: str, **fields: Any) -> Mapping[str, Any]:
    return {"error": {"message": message, **fields}}


LONG = "maximum context length is 9 tokens"


@pytest.mark.parametrize(
    ("backend_type", "status", "body", "kind"),
    [
        (
            KimiBackend,
            400,
            said("Your request exceeded model token limit: 9 (requested: 12)"),
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (KimiBackend, 429, said("no", type="exceeded_current_quota_error"), ErrorKind.QUOTA),
        (
            QwenBackend,
            400,
            said("Range of input length should be [1, 9]", code="invalid_parameter_error"),
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (VllmBackend, 400, said(f"This model's {LONG}."), ErrorKind.CONTEXT_OVERFLOW),
        (
            OllamaBackend,
            400,
            said("prompt too long; exceeded max context length by 9 tokens"),
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (
            LlamaCppBackend,
            400,
            said("too large", type="exceed_context_size_error", code=400, n_ctx=9),
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (
            LMStudioBackend,
            400,
            {
                "error": "Trying to keep the first 12 tokens: the number of tokens to keep from "
                "the initial prompt is greater than the context length"
            },
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (
            OpenRouterBackend,
            400,
            said("Provider returned error", code=400, metadata={"raw": f"This endpoint's {LONG}"}),
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (OpenRouterBackend, 402, said("credits", code=402), ErrorKind.QUOTA),
    ],
)
async def test_each_one_s_errors_have_their_class(
    backend_type: Backend, status: int, body: object, kind: ErrorKind
) -> None:
    error = await refused(backend_type, status, body)

    assert (error.kind, error.vendor) == (kind, backend_type.vendor)


@pytest.mark.parametrize("backend_type", [OllamaBackend, LlamaCppBackend, LMStudioBackend])
def test_a_small_window_is_taken_for_granted(backend_type: Backend) -> None:
    assert backend_type().model_facts("m").context_window == 4_096


async def test_who_asks_for_whatever_is_served_is_told_of_no_change() -> None:
    for backend_type, asked_for in ((LlamaCppBackend, "default"), (OpenRouterBackend, None)):
        backend = backend_type(api_key="k", transport=Recorded({**OK, "model": "some/model"}))
        for name, changed in ((asked_for, False), ("another", True)):
            request = request_of(backend, Message.user("q"), options=SendOptions(model=name))
            assert (await backend.send(request)).model_changed is changed


class LlamaCppOfTheEmbeddedModel(LlamaCppBackend):
    """llama.cpp's server as `LocalBackend` runs it, spoken to as a stranger would."""

    def __init__(self) -> None:
        super().__init__()
        self._own = LocalBackend(context_window=1024)

    async def address(self, api: Api = CHAT) -> tuple[httpx.URL, httpx.Headers]:
        return await self._own.address(api)

    async def aclose(self) -> None:
        await super().aclose()
        await self._own.aclose()


class TestLlamaCppForReal(BackendContract):
    pytestmark: ClassVar = needs_model
    options: ClassVar[SendOptions] = SendOptions(max_tokens=8, temperature=0)

    def make_backend(self) -> ContextBackend:
        return LlamaCppOfTheEmbeddedModel()

    def test_it_takes_a_late_system_message_and_refuses_too_long_a_request(self) -> None:
        async def talk(backend: ContextBackend) -> tuple[Completion, BackendError]:
            said = [Message.system("a"), Message.user("Hi."), Message.system("Be brief.")]
            completion = await backend.send(request_of(backend, *said, options=self.options))
            try:
                await backend.send(request_of(backend, Message.user("word " * 2000)))
            except BackendError as error:
                return completion, error
            raise AssertionError("nothing was refused")

        completion, error = self._run(talk)

        assert completion.message.text
        assert (error.kind, error.window) == (ErrorKind.CONTEXT_OVERFLOW, 1024)
        assert error.needed is not None
        assert error.needed > 2000
