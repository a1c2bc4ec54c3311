"""Whole requests, counted here and in the prompt that DeepSeek's own renderer makes of them."""

import importlib
import json
import re
from typing import Any

import pytest

from agent_context._actor.model_client import ModelClient
from agent_context._context.stored_message import from_message
from agent_context._context.tokens import counter
from agent_context.backend import Request
from agent_context.messages import Message, Origin, ToolCall
from agent_context.options import SendOptions
from agent_context.tools import Tool
from agent_context_backends._endpoints import CHAT
from agent_context_backends.deepseek import DeepSeekBackend
from tests.histories import zones_of

BACKEND = DeepSeekBackend(api_key="k")
SPECIAL = re.compile(
    "<｜System｜>|<｜User｜>|<｜Assistant｜>|<think>|</think>|｜DSML｜"
    "|<｜begin▁of▁sentence｜>|<｜end▁of▁sentence｜>"
)
TOOLS = [
    Tool(
        name="get_weather",
        description="Get the weather of a city, now or on a day.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name"},
                "day": {"type": "string", "description": "ISO date"},
            },
            "required": ["city"],
        },
    ),
    Tool(
        name="search",
        description="Search the documentation. Returns at most `limit` passages.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        },
    ),
]
ENGLISH = (
    "The conversation is an actor that owns one context. Everything else is a value, a plan or an "
    "edge. What takes time runs outside and comes back as a message with the version it began at. "
)
CHINESE = "我们先看一下这个问题的背景。用户希望在不丢失信息的前提下压缩对话历史，同时保证请求合法。"


def said(text: str, **fields: Any) -> Message:
    message = Message.assistant(text, **fields)
    return message.model_copy(update={"origin": Origin(vendor="deepseek")})


def talk(text: str, *, thinks: bool = False, loops: int = 0) -> list[Message]:
    reasoning = text if thinks else None
    messages = [Message.system(text)]
    for turn in range(5):
        messages.append(Message.user(text))
        for loop in range(loops):
            arguments = json.dumps({"query": text[:30], "limit": loop}, ensure_ascii=False)
            ids = [f"c{turn}{loop}{n}" for n in range(1 + loop % 2)]
            calls = [ToolCall(id=one, name="search", arguments=arguments) for one in ids]
            messages.append(said("", tool_calls=calls, reasoning=reasoning))
            messages += [Message.tool(one, text * 2) for one in ids]
        messages.append(said(text, reasoning=reasoning))
    return [*messages, Message.user(text[:40])]


SHORT = [Message.user("Hi") if n % 2 == 0 else said("Hello!") for n in range(41)]
CASES: dict[str, tuple[list[Message], dict[str, Any]]] = {
    "a question": ([Message.user("What is the capital of France?")], {}),
    "plain talk": (talk(ENGLISH), {"thinking": False}),
    "short turns": (SHORT, {"thinking": False}),
    "thinking": (talk(ENGLISH, thinks=True), {}),
    "most effort": (talk(ENGLISH, thinks=True), {"effort": "max"}),
    "least effort": (talk(ENGLISH, thinks=True), {"effort": "low"}),
    "a question with tools": ([Message.user("Is it raining?")], {"tools": TOOLS}),
    "thinking with tools": (talk(ENGLISH, thinks=True), {"tools": TOOLS}),
    "tool loops": (talk(ENGLISH, loops=3), {"tools": TOOLS, "thinking": False}),
    "thinking in tool loops": (talk(ENGLISH, thinks=True, loops=3), {"tools": TOOLS}),
    "Chinese": (talk(CHINESE), {"thinking": False}),
    "Chinese in tool loops": (talk(CHINESE, thinks=True, loops=2), {"tools": TOOLS}),
}


def rendered(body: dict[str, Any], *, pro: bool) -> str:
    recipe = importlib.import_module("deepseek_recipe")
    versions = recipe.ModelVersion
    version = versions.DeepseekV4Pro if pro else versions.DeepseekV41Flash
    options = recipe.ConversionOptions(
        reasoning_content_behavior=recipe.ReasoningContentBehavior.Reject
    ).with_model_alias(body["model"], version)
    asked = recipe.ChatCompletionRequest(body).convert(options)
    encoding = recipe.DeepseekV4Encoding() if pro else recipe.DeepseekV41Encoding()
    prompt: str = encoding.render_conversation(asked.conversation).prompt
    return prompt


def tokens_of(prompt: str) -> int:
    """What the vocabulary's own tokenizer counts: every special token is one."""
    count = counter("deepseek_v3").count
    return len(SPECIAL.findall(prompt)) + sum(map(count, filter(None, SPECIAL.split(prompt))))


@pytest.mark.parametrize("model", ["deepseek-flash", "deepseek-v4-pro"])
@pytest.mark.parametrize("case", CASES)
def test_a_request_is_counted_within_two_percent(case: str, model: str) -> None:
    pytest.importorskip("deepseek_recipe")
    pytest.importorskip("splintr")
    messages, chosen = CASES[case]
    zones, options = zones_of([*map(from_message, messages)]), SendOptions(model=model, **chosen)
    facts = BACKEND.model_facts(model)
    request = Request(conversation_id="c", zones=zones, options=options, facts=facts)

    counted = ModelClient(BACKEND, "c").bind(options).count_exactly(zones, ()).total

    body = json.loads(BACKEND._body(request, CHAT, stream=False))
    prompt = rendered(body, pro=model == "deepseek-v4-pro")
    assert counted == pytest.approx(tokens_of(prompt), rel=0.02)


def test_what_was_recorded_of_the_api_is_what_is_counted() -> None:
    """90 tokens, v4 with thinking, in a recording of 2026-08."""
    pytest.importorskip("splintr")
    zones = zones_of([from_message(Message.user("What is the capital of France?"))])
    options = SendOptions(model="deepseek-v4-pro")

    assert ModelClient(BACKEND, "c").bind(options).count_exactly(zones, ()).total == 90
