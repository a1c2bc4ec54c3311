"""Chat completions, asked by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from agent_context import BackendError, ErrorKind, Message, TextDelta, ToolCall
from agent_context.service.auth import KeyFile
from agent_context_backends.scripted import Hold
from tests.service.conftest import Serve, Served
from tests.support.waiting import wait_for, wait_until


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def ask(client: openai.OpenAI, *messages: Any, **options: Any) -> str:
    answer = client.chat.completions.create(model="scripted", messages=[*messages], **options)
    return str(answer.choices[0].message.content)


def test_models_are_listed(serve: Serve, connect: Any) -> None:
    client = connect(serve())

    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "scripted"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("none")
    assert caught.value.code == "model_not_found"


def test_a_question_without_a_name_is_answered_and_not_kept(serve: Serve, connect: Any) -> None:
    service = serve(["Hello!"])

    answer = connect(service).chat.completions.create(
        model="scripted", messages=[system("Be kind."), user("Hi")], temperature=0.5
    )

    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Hello!", "stop")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert service.get("/v1/sessions").json()["data"] == []
    (request,) = service.backend.requests  # type: ignore[attr-defined]
    assert [record.message.text for record in request.records] == ["Be kind.", "Hi"]
    assert (request.options.temperature, request.options.model) == (0.5, "model-1")
    wait_until(lambda: "context_actor_turns 0.0" in service.get("/metrics").text)


def test_an_answer_is_streamed_with_its_usage(serve: Serve, connect: Any) -> None:
    chunks = list(
        connect(serve(["One two three"])).chat.completions.create(
            model="scripted",
            messages=[user("Count")],
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "One two three"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens > 0) == ([], True)
    assert len({chunk.id for chunk in chunks}) == 1


def test_tools_are_called_by_the_client(serve: Serve, connect: Any) -> None:
    call = ToolCall(id="call_1", name="weather", arguments='{"city": "Oslo"}')
    service = serve([Message.assistant("", tool_calls=[call]), "Cold."])
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    history: list[Any] = [user("Weather?")]

    with client.chat.completions.stream(model="scripted", messages=history, tools=tools) as stream:
        said = stream.get_final_completion().choices[0].message
    history.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
    history.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "-3"})
    answer = client.chat.completions.create(model="scripted", messages=history, tools=tools)

    function = said.tool_calls[0].function
    assert (function.name, function.arguments) == ("weather", '{"city": "Oslo"}')
    assert answer.choices[0].message.content == "Cold."
    assert service.texts("talk") == ["Weather?", "", "-3", "Cold."]


def test_what_is_sent_again_is_stored_once(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})

    first = ask(client, system("Now 9:00"), user("a"))
    second = ask(client, system("Now 9:01"), user("a"), assistant(first), user("b"))

    assert (first, second) == ("re: a", "re: b")
    assert service.texts("talk") == ["a", "re: a", "b", "re: b"]
    requests = service.backend.requests  # type: ignore[attr-defined]
    assert [record.message.text for record in requests[1].records] == [
        "Now 9:01", "a", "re: a", "b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("headers", "body", "path"),
    [
        ({"X-Conversation-Id": "talk"}, {"prompt_cache_key": "other"}, "/v1"),
        ({"session-id": "talk"}, {}, "/v1"),
        ({"x-session-id": "talk"}, {}, "/v1"),
        ({"X-OpenWebUI-Chat-Id": "talk"}, {}, "/v1"),
        ({"x-claude-code-session-id": "talk"}, {}, "/v1"),
        ({"X-OpenWebUI-Chat-Id": "", "session_id": "talk"}, {}, "/v1"),
        ({}, {"prompt_cache_key": "talk"}, "/v1"),
        ({}, {}, "/c/talk/v1"),
    ],
)
def test_a_conversation_is_named_by_what_the_client_can_say(
    serve: Serve, connect: Any, headers: dict[str, str], body: dict[str, str], path: str
) -> None:
    service = serve()
    client = connect(service, path=path, default_headers=headers)

    ask(client, user("a"), extra_body=body)
    ask(client, user("a"), assistant("re: a"), user("b"), extra_body=body)

    assert service.texts("talk") == ["a", "re: a", "b", "re: b"]
    assert len(service.get("/v1/sessions").json()["data"]) == 1


def test_what_a_client_sends_unasked_may_be_no_id(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service)
    for history in ([user("a")], [user("a"), assistant("re: a"), user("b")]):
        ask(client, *history, extra_body={"prompt_cache_key": "user 7/of ours"})

    (session,) = service.get("/v1/sessions").json()["data"]
    assert service.texts(session["id"]) == ["a", "re: a", "b", "re: b"]


def test_a_client_that_sends_only_what_is_new_says_which_conversation(
    serve: Serve, connect: Any
) -> None:
    service = serve()
    client = connect(service)

    for text in "ab":
        ask(client, user(text), extra_body={"conversation": "talk"})

    assert service.texts("talk") == ["a", "re: a", "b", "re: b"]


def test_another_beginning_under_the_same_name_is_answered_aside(
    serve: Serve, connect: Any
) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    ask(client, user("a"))

    response = client.chat.completions.with_raw_response.create(
        model="scripted", messages=[system("Make a title."), user("Title of: a")]
    )
    ask(client, user("a"), assistant("re: a"), user("b"))

    assert response.headers["X-Conversation-Placement"] == "aside"
    assert response.parse().choices[0].message.content == "re: Title of: a"
    assert service.texts("talk") == ["a", "re: a", "b", "re: b"]
    assert len(service.get("/v1/sessions").json()["data"]) == 1


def test_an_aside_that_is_gone_on_with_was_a_talk_of_its_own(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    ask(client, user("Title of: a"))
    ask(client, user("a"))

    ask(client, user("a"), assistant("re: a"), user("b"))
    ask(client, user("a"), assistant("re: a"), user("b"), assistant("re: b"), user("c"))

    assert service.texts("talk") == ["Title of: a", "re: Title of: a"]
    assert service.texts("talk~1") == ["a", "re: a", "b", "re: b", "c", "re: c"]


def test_the_talk_with_tools_is_kept_although_its_title_was_asked_first(
    serve: Serve, connect: Any
) -> None:
    service = serve()
    client = connect(service, default_headers={"x-session-id": "talk"})
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}]

    ask(client, user("Title of: a"))
    ask(client, user("a"), tools=tools)
    ask(client, user("a"))

    assert service.texts("talk~1") == ["a", "re: a"]
    assert len(service.get("/v1/sessions").json()["data"]) == 2


def test_a_history_that_leaves_the_stored_one_is_a_fork(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    ask(client, user("a"))
    ask(client, user("a"), assistant("re: a"), user("b"))

    ask(client, user("a"), assistant("re: a"), user("B"))
    ask(client, user("a"), assistant("re: a"), user("B"), assistant("re: B"), user("c"))
    ask(client, user("a"), assistant("re: a"), user("b"), assistant("re: b"), user("d"))

    assert service.texts("talk~1") == ["a", "re: a", "B", "re: B", "c", "re: c"]
    assert service.texts("talk") == ["a", "re: a", "b", "re: b", "d", "re: d"]
    assert service.get("/v1/sessions/talk~1").json()["parent"]["id"] == "talk"


def test_or_a_rewind_where_the_operator_says_so(serve: Serve, connect: Any) -> None:
    service = serve(on_rewrite="rewind")
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    ask(client, user("a"))
    ask(client, user("a"), assistant("re: a"), user("b"))

    ask(client, user("a"), assistant("re: a"), user("B"))

    assert service.texts("talk") == ["a", "re: a", "B", "re: B"]
    kinds = [each["message"]["content"] for each in _history(service, "talk")]
    assert "b" in kinds


def _history(service: Served, session: str) -> list[Any]:
    data: list[Any] = service.get(f"/v1/sessions/{session}/history").json()["data"]
    return data


def test_a_compressed_conversation_still_knows_what_was_said(serve: Serve, connect: Any) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    history: list[Any] = []
    for number in range(6):
        history.append(user(f"{number} {'word ' * 50}".strip()))
        history.append(assistant(ask(client, *history)))
    path = "/v1/sessions/talk/compress"
    body = {"strategy": "sliding_window", "arguments": {"turns": 1}}
    assert service.post(path, body).json()["changed"]
    assert len(service.texts("talk")) == 2

    for text in ("next", "last"):
        history.append(user(text))
        history.append(assistant(ask(client, *history)))

    assert service.texts("talk")[2:] == ["next", "re: next", "last", "re: last"]
    assert len(service.get("/v1/sessions").json()["data"]) == 1


def test_an_answer_that_was_cut_off_may_come_back_short_or_not_at_all(
    serve: Serve, connect: Any
) -> None:
    service = serve([[TextDelta("half an "), Hold()], "b", "never"])
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    with client.chat.completions.create(
        model="scripted", messages=[user("a")], stream=True
    ) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content:
                break

    answer = ask(client, user("a"), assistant("half"), user("b?"))

    assert answer == "b"
    assert service.texts("talk") == ["a", "half an ", "b?", "b"]


def test_a_question_that_nobody_can_find_again_ends_with_its_client(
    serve: Serve, connect: Any
) -> None:
    hold = Hold()
    service = serve([[TextDelta("half"), hold]])
    with connect(service).chat.completions.create(
        model="scripted", messages=[user("a")], stream=True
    ) as stream:
        next(iter(stream))
        wait_for(hold.entered)

    wait_until(lambda: "context_actor_turns 0.0" in service.get("/metrics").text)
    assert not hold.released


def test_what_is_not_to_be_stored_is_kept_only_where_the_key_allows(
    serve: Serve, connect: Any, tmp_path: Any
) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    keeps, keeps_not = (
        keys.create(tenant=name, keep_unstored=keep)[0]
        for name, keep in (("a", True), ("b", False))
    )
    service = serve(keys=keys.path)

    for key in (keeps, keeps_not):
        client = connect(service, api_key=key, default_headers={"session-id": "talk"})
        ask(client, user("a"), store=False)

    stored = [
        service.get("/v1/sessions", headers={"x-api-key": key}).json()["data"]
        for key in (keeps, keeps_not)
    ]
    assert [len(sessions) for sessions in stored] == [1, 0]


@pytest.mark.parametrize(
    ("body", "param", "error"),
    [
        ({"model": "none"}, "model", openai.NotFoundError),
        ({"n": 2}, "n", openai.BadRequestError),
        ({"messages": []}, "messages", openai.BadRequestError),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0", openai.BadRequestError),
        ({"temperature": 9}, "temperature", openai.BadRequestError),
        ({"max_tokens": "many"}, "max_tokens", openai.BadRequestError),
        ({"tools": [{"type": "function"}]}, "tools.0", openai.BadRequestError),
    ],
)
def test_a_bad_request_is_refused_as_openai_refuses_it(
    serve: Serve, connect: Any, body: dict[str, Any], param: str, error: type[openai.APIStatusError]
) -> None:
    service = serve()
    client = connect(service, default_headers={"X-Conversation-Id": "talk"})
    whole = {"model": "scripted", "messages": [user("a")], **body}

    with pytest.raises(error) as caught:
        client.chat.completions.create(**whole)

    assert caught.value.param == param
    assert service.get("/v1/sessions").json()["data"] == []


def test_a_failure_has_its_status_before_the_stream_and_is_raised_within(
    serve: Serve, connect: Any
) -> None:
    limited = BackendError("slow down", kind=ErrorKind.RATE_LIMITED, retryable=False)
    gone = BackendError("gone", kind=ErrorKind.TRANSPORT, retryable=False)
    client = connect(serve([limited, [TextDelta("half"), gone]]))

    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="scripted", messages=[user("a")], stream=True)
    with pytest.raises(openai.APIError, match="gone"):
        list(client.chat.completions.create(model="scripted", messages=[user("a")], stream=True))
