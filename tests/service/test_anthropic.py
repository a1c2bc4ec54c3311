"""The Messages API, asked by Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from agent_context import (
    AgentContext,
    BackendError,
    ErrorKind,
    Message,
    ReasoningDelta,
    SendOptions,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from agent_context.messages import Completion
from agent_context.models import ModelFacts
from agent_context.service.auth import KeyFile
from agent_context_backends.anthropic import AnthropicBackend
from agent_context_backends.scripted import ScriptedBackend
from tests.service.conftest import Serve, Served
from tests.support.waiting import WAIT


@pytest.fixture
def connect() -> Iterator[Any]:
    """Anthropic's client of a service, which believes no answer that is not of its types."""
    clients: list[anthropic.Anthropic] = []

    def make(service: Served, *, path: str = "", **options: Any) -> anthropic.Anthropic:
        client = anthropic.Anthropic(
            base_url=f"{service.url}{path}",
            api_key=options.pop("api_key", "none"),
            max_retries=0,
            timeout=WAIT,
            _strict_response_validation=True,
            **options,
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def ask(client: anthropic.Anthropic, *messages: Any, **options: Any) -> Any:
    options = {"model": "scripted", "max_tokens": 100, **options}
    return client.messages.create(messages=[*messages], **options)


def test_a_message_is_answered_and_its_tokens_are_told(serve: Serve, connect: Any) -> None:
    usage = Usage(input_tokens=10, output_tokens=3, cached_tokens=4, cache_write_tokens=1)
    service = serve([Completion(message=Message.assistant("Hello!"), usage=usage)])

    answer = ask(connect(service), user("Hi"), system="Be kind.", stop_sequences=["x"])

    assert (answer.content[0].text, answer.stop_reason) == ("Hello!", "end_turn")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 3)
    assert answer.usage.cache_read_input_tokens == 4
    assert answer.usage.cache_creation_input_tokens == 1
    (request,) = service.backend.requests  # type: ignore[attr-defined]
    assert [record.message.text for record in request.records] == ["Be kind.", "Hi"]
    assert (request.options.max_tokens, request.options.stop) == (100, ("x",))
    assert service.get("/v1/sessions").json()["data"] == []


def test_text_thoughts_and_calls_are_streamed_block_by_block(serve: Serve, connect: Any) -> None:
    script = [
        ReasoningDelta("hm"),
        TextDelta("I "),
        TextDelta("look."),
        ToolCallDelta(0, "call_1", "read", '{"a"'),
        ToolCallDelta(0, arguments=": 1}"),
        ToolCallDelta(1, "call_2", "list", "{}"),
    ]
    client = connect(serve([script]))

    with client.messages.stream(model="scripted", max_tokens=100, messages=[user("Hi")]) as stream:
        kinds = [event.type for event in stream if event.type.startswith(("message", "content"))]
        final = stream.get_final_message()

    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    delta = "content_block_delta"
    assert kinds == [
        "message_start",
        *block[:2], delta, block[2],
        *block[:2], delta, block[2],
        *block[:2], delta, block[2],
        *block,
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert [content.type for content in final.content] == [
        "thinking", "text", "tool_use", "tool_use",
    ]  # fmt: skip
    assert (final.content[0].thinking, final.content[1].text) == ("hm", "I look.")
    assert (final.content[2].name, final.content[2].input) == ("read", {"a": 1})
    assert (final.stop_reason, final.usage.output_tokens > 0) == ("tool_use", True)


def test_a_session_of_an_agent_is_kept_once_and_goes_on(serve: Serve, connect: Any) -> None:
    call = ToolCall(id="call_1", name="weather", arguments='{"city": "Oslo"}')
    service = serve([Message.assistant("I look.", tool_calls=[call]), "Cold.", "Title", "Bye."])
    client = connect(service, default_headers={"x-claude-code-session-id": "talk"})
    tools = [{"name": "weather", "description": "d", "input_schema": {"type": "object"}}]
    history: list[Any] = [user([{"type": "text", "text": "Weather?"}])]

    first = ask(client, *history, tools=tools, tool_choice={"type": "any"})
    history.append({"role": "assistant", "content": [c.model_dump() for c in first.content]})
    result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "-3"}
    history.append(user([result, {"type": "text", "text": "Short."}]))
    second = ask(client, *history, tools=tools, extra_query={"beta": "true"})
    title = ask(client, user("Make a title"))
    history.append({"role": "assistant", "content": second.content[0].text})
    history.append(user([{"type": "text", "text": "Ta", "cache_control": {"type": "ephemeral"}}]))
    ask(client, *history, tools=tools)

    assert title.content[0].text == "Title"
    assert service.texts("talk") == [
        "Weather?", "I look.", "-3", "Short.", "Cold.", "Ta", "Bye.",
    ]  # fmt: skip
    requests = service.backend.requests  # type: ignore[attr-defined]
    assert requests[0].options.tool_choice == "required"
    assert len(service.get("/v1/sessions").json()["data"]) == 1


@pytest.mark.parametrize(
    ("path", "metadata"),
    [
        ("/c/0f0e0d0c-0000-4000-8000-000000000000", None),
        ("", {"user_id": "user_1_account__session_0f0e0d0c-0000-4000-8000-000000000000"}),
    ],
)
def test_a_conversation_is_named_by_path_or_metadata(
    serve: Serve, connect: Any, path: str, metadata: Any
) -> None:
    service = serve()
    options = {} if metadata is None else {"metadata": metadata}

    ask(connect(service, path=path), user("a"), **options)

    assert service.texts("0f0e0d0c-0000-4000-8000-000000000000") == ["a", "re: a"]


def test_images_and_documents_come_through(serve: Serve, connect: Any) -> None:
    service = serve(["Seen."])
    image = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    document = {"type": "text", "media_type": "text/plain", "data": "A page."}

    ask(
        connect(service),
        user([{"type": "image", "source": image}, {"type": "document", "source": document}]),
    )

    (request,) = service.backend.requests  # type: ignore[attr-defined]
    parts = request.records[0].message.parts
    assert (parts[0].url, parts[1].text) == ("data:image/png;base64,AAAA", "A page.")


def test_thinking_and_length_are_asked_for_as_far_as_the_model_can(
    serve: Serve, connect: Any
) -> None:
    facts = ModelFacts(context_window=8_000, max_output=500, thinks=True)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    service = serve(ScriptedBackend(["a"], facts=facts))

    ask(connect(service), user("a"), thinking=thinking, max_tokens=32_000)

    (request,) = service.backend.requests  # type: ignore[attr-defined]
    assert (request.options.thinking, request.options.max_tokens) == (True, 500)


def test_tokens_are_counted_and_models_listed(serve: Serve, connect: Any) -> None:
    client = connect(serve())

    count = client.messages.count_tokens(
        model="scripted", messages=[user("Hello there")], system="Be kind."
    )

    assert count.input_tokens > 5
    assert [model.id for model in client.models.list()] == ["scripted"]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"model": "none"}, anthropic.NotFoundError),
        ({"max_tokens": 0}, anthropic.BadRequestError),
        ({"messages": []}, anthropic.BadRequestError),
        ({"messages": [{"role": "king", "content": "a"}]}, anthropic.BadRequestError),
        ({"messages": [user([{"type": "magic"}])]}, anthropic.BadRequestError),
        ({"messages": [user([{"type": "tool_result"}])]}, anthropic.BadRequestError),
        ({"tools": [{"description": "no name"}]}, anthropic.BadRequestError),
    ],
)
def test_a_bad_request_is_refused_as_anthropic_refuses_it(
    serve: Serve, connect: Any, body: dict[str, Any], error: type[anthropic.APIStatusError]
) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    whole = {"model": "scripted", "max_tokens": 9, "messages": [user("a")], **body}

    with pytest.raises(error) as caught:
        client.messages.create(**whole)

    assert caught.value.body["type"] == "error"  # type: ignore[index]
    assert service.get("/v1/sessions").json()["data"] == []


def test_a_key_is_wanted_in_anthropics_words(serve: Serve, connect: Any, tmp_path: Any) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    token, _ = keys.create()
    service = serve(keys=keys.path)

    with pytest.raises(anthropic.AuthenticationError):
        ask(connect(service), user("a"))

    assert ask(connect(service, api_key=token), user("a")).content[0].text == "re: a"


def test_a_failure_in_the_middle_is_raised_within(serve: Serve, connect: Any) -> None:
    limited = BackendError("slow down", kind=ErrorKind.RATE_LIMITED, retryable=False)
    gone = BackendError("gone", kind=ErrorKind.TRANSPORT, retryable=False)
    client = connect(serve([limited, [TextDelta("half"), gone]]))

    with pytest.raises(anthropic.RateLimitError):
        ask(client, user("a"), stream=True)
    with pytest.raises(anthropic.APIError, match="gone"):
        list(ask(client, user("a"), stream=True))


async def test_the_backend_for_anthropic_talks_to_the_service_too(serve: Serve) -> None:
    thought = Message.assistant("Oslo.", reasoning="Norway, so:")
    service = serve(ScriptedBackend([thought, "Bergen."]))
    backend = AnthropicBackend(api_key="none", base_url=service.url)
    async with await AgentContext.astart(backend, options=SendOptions(model="scripted")) as ctx:
        words = [text async for text in ctx.stream("Capital of Norway?")]
        second = await ctx.asay("And the second city?")
    await backend.aclose()

    assert "".join(words) == "Oslo."
    assert second.text == "Bergen."
    assert second.usage.input_tokens is not None
