"""The models of OpenAI's and Zhipu's validators accept what is good and nothing else; and whatever
a history looks like, what our backends send of it is accepted by them and by DeepSeek's own."""

import json
from typing import Any

import pytest
from hypothesis import given

from agent_context._context.stored_message import StoredMessage
from agent_context.wire.rendering import RequestRenderer
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.openai_compatible import VllmBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.histories import histories, zones_of
from tests.support.examples import examples
from tests.wire.rules import deepseek_refuses
from tests.wire.vendor_rules import Wire, openai_refuses, zhipu_refuses

DEEPSEEK, OPENAI, ZHIPU = (
    backend(api_key="k") for backend in (DeepSeekBackend, OpenAIBackend, ZhipuBackend)
)


def user(content: Any = "q", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def asking(*ids: str, name: str = "f", arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": one, "type": "function", "function": function, **more} for one in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(id: str, content: str = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def image(url: str = "https://x/y.png", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


TEXT = {"type": "text", "text": "a"}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
SAID = {"role": "assistant", "content": "a"}

GOOD: list[Wire] = [
    [user()],
    [{"role": "system", "content": "s"}, user([TEXT]), SAID, user()],
    [user(), asking("1", "2"), result("2"), result("1", ""), SAID],
    [user(), asking("1"), result("1"), asking("1"), result("1")],
]
BAD_FOR_BOTH: list[Wire] = [
    [],
    [user(), {"role": "function", "content": "x"}],
    [user([])],
    [user([{"type": "tool_use", "id": "1"}])],
    [user([AUDIO, {"type": "text", "text": None}])],
    [user(), asking()],
    [user(), asking("1", "1"), result("1")],
    [user(), asking(""), result("")],
    [user(), asking("1", name="a.b"), result("1")],
    [user(), asking("1", name=""), result("1")],
    [user(), asking("1", arguments={}), result("1")],
    [user(), result("1")],
    [user(), asking("1")],
    [user(), asking("1"), SAID],
    [user(), asking("1"), user(), result("1")],
    [user(), asking("1"), result("2")],
    [user(), asking("1"), result("1"), result("1")],
    [user(tool_calls=[])],
    [user(), {"role": "assistant", "content": None}],
]


@pytest.mark.parametrize("messages", GOOD)
def test_what_is_good_is_accepted(messages: Wire) -> None:
    assert openai_refuses(messages) == []
    assert zhipu_refuses(messages) == []


@pytest.mark.parametrize("messages", BAD_FOR_BOTH)
def test_what_neither_accepts_is_refused(messages: Wire) -> None:
    assert openai_refuses(messages)
    assert zhipu_refuses(messages, sees=True)


@pytest.mark.parametrize(
    "messages",
    [
        [SAID],
        [user(""), user("")],
        [{"role": "developer", "content": "s"}, user(name="ann")],
        [user([TEXT, image("data:image/png;base64,AA", detail="low"), AUDIO])],
        [user(), SAID, SAID],
    ],
)
def test_what_openai_alone_accepts(messages: Wire) -> None:
    assert openai_refuses(messages) == []
    assert zhipu_refuses(messages)


@pytest.mark.parametrize(
    "messages",
    [
        [user(), {**SAID, "reasoning_content": "so"}],
        [user(), {**SAID, "vendor_field": 1}],
        [user(), asking("x" * 41), result("x" * 41)],
        [user(), asking("1", signature="s"), result("1")],
        [user([{"type": "video_url", "video_url": {"url": "https://x"}}])],
    ],
)
def test_what_zhipu_alone_accepts(messages: Wire) -> None:
    assert openai_refuses(messages)
    assert zhipu_refuses(messages, sees=True) == []


@pytest.mark.parametrize("part", [image("file:///x"), image("data:x"), image(width=8)])
def test_not_every_image_is_one(part: dict[str, Any]) -> None:
    assert openai_refuses([user([part])])
    assert zhipu_refuses([user([part])], sees=True)


def test_openai_has_rules_for_names() -> None:
    assert openai_refuses([user(name="ann lee")])
    assert openai_refuses([user(name="")])


def test_zhipu_s_text_models_see_no_image() -> None:
    assert zhipu_refuses([user([TEXT, image()])])
    assert zhipu_refuses([user([TEXT, image()])], sees=True) == []


def sent(records: list[StoredMessage], backend: ChatCompletionsBackend, model: str) -> Wire:
    body = RequestRenderer().body({}, zones_of(records), (), backend.dialect_for(model))
    messages: Wire = json.loads(body)["messages"]
    return messages


def refusals(records: list[StoredMessage]) -> dict[str, Any]:
    """What each vendor has against what is sent to it of this history."""
    return {
        "deepseek": deepseek_refuses(sent(records, DEEPSEEK, "deepseek-flash")),
        "deepseek-pro": deepseek_refuses(sent(records, DEEPSEEK, "deepseek-v4-pro")),
        "openai": openai_refuses(sent(records, OPENAI, "gpt-5.4")),
        "zhipu": zhipu_refuses(sent(records, ZHIPU, "glm-5.2")),
        "zhipu-v": zhipu_refuses(sent(records, ZHIPU, "glm-4.6v"), sees=True),
    }


@examples(2)
@given(histories)
def test_a_template_finds_no_system_message_but_the_first(records: list[StoredMessage]) -> None:
    roles = [message["role"] for message in sent(records, VllmBackend(), "m")]

    assert "system" not in roles[1:]
    assert "user" in roles


@examples(3)
@given(histories)
def test_every_vendor_accepts_what_is_sent_of_any_history(records: list[StoredMessage]) -> None:
    pytest.importorskip("deepseek_recipe")

    assert not any(refusals(records).values()), refusals(records)
