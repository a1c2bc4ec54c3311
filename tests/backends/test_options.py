"""Every option to every vendor, thinking or not: said, or refused with a reason, never lost."""

import json
import re
from typing import Any

import pytest

from agent_context.errors import InvalidOptions
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.testing import request_of
from agent_context.tools import Tool
from agent_context_backends._endpoints import CHAT
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
from agent_context_backends.zhipu import ZhipuBackend

MODELS: list[tuple[type[ChatCompletionsBackend], str]] = [
    *((DeepSeekBackend, name) for name in (*DeepSeekBackend.known_models, "deepseek-new")),
    *((OpenAIBackend, name) for name in (*OpenAIBackend.known_models, "gpt-new")),
    *((ZhipuBackend, name) for name in (*ZhipuBackend.known_models, "glm-new")),
    *((KimiBackend, name) for name in (*KimiBackend.known_models, "kimi-new")),
    (QwenBackend, "qwen3-max"),
    (VllmBackend, "m"),
    (OllamaBackend, "m"),
    (LlamaCppBackend, "m"),
    (LMStudioBackend, "m"),
    (OpenRouterBackend, "m"),
]
NAMES = [f"{backend.vendor}-{model}" for backend, model in MODELS]
THINKING = {"thinking", "reasoning_effort", "enable_thinking", "chat_template_kwargs", "reasoning"}
SAID_AS = {
    "model": {"model"},
    "max_tokens": {"max_tokens", "max_completion_tokens"},
    "tools": {"tools"},
    "tool_choice": {"tool_choice"},
    "thinking": THINKING,
    "effort": THINKING,
    "response_format": {"response_format"},
    "temperature": {"temperature"},
    "top_p": {"top_p"},
    "stop": {"stop"},
    "seed": {"seed"},
    "extra": {"user_id"},
}
"""The fields of a request that say an option."""
NOT_THE_SERVERS = {
    "context_window", "auto_compress", "soft_limit", "on_busy", "on_abort", "commit", "timeout",
    "retries", "scratch", "instructions",
}  # fmt: skip
"""What a conversation does by itself; scratch and instructions become messages."""

TOOL = Tool(name="f")
TOOLS = {"tools": (TOOL,)}
CHOSEN: list[tuple[str, dict[str, Any]]] = [
    *(("max_tokens", {"max_tokens": n}) for n in (1, 5_000, 10_000_000)),
    ("tools", TOOLS),
    ("tools", {"tools": tuple(Tool(name=f"f{n}") for n in range(200))}),
    *(("tool_choice", {**TOOLS, "tool_choice": one}) for one in ("auto", "none", "required", "f")),
    *(
        ("effort", {"effort": effort})
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    ),
    *(
        ("response_format", {"response_format": {"type": kind}})
        for kind in ("text", "json_object", "json_schema", "grammar")
    ),
    *(("temperature", {"temperature": n}) for n in (0, 0.5, 1, 1.5, 2, 9)),
    *(("top_p", {"top_p": n}) for n in (0, 0.5, 0.97, 1)),
    *(("stop", {"stop": stop}) for stop in ("x", tuple("abcde"), tuple("abcdefghijklmnopqrst"))),
    ("seed", {"seed": 3}),
    ("extra", {"extra": {"user_id": "u"}}),
]
REASONS = re.compile(
    r": \S|at most \d|from [\d.]+ to|only [\d.]+|takes (the )?\w+ \w+|in the formats|contradict"
)


def body_of(backend: type[ChatCompletionsBackend], model: str, **options: Any) -> dict[str, Any]:
    """The request's body. Raises `InvalidOptions`."""
    asked = SendOptions(model=model, **options)
    made = backend(api_key="k")
    request = request_of(made, Message.user("as json"), options=asked)
    body: dict[str, Any] = json.loads(made._body(request, CHAT, stream=False))
    return body


def outcome(body_or_error: dict[str, Any] | InvalidOptions, option: str) -> str:
    if isinstance(body_or_error, InvalidOptions):
        return "refused" if REASONS.search(str(body_or_error)) else f"no reason: {body_or_error}"
    return "said" if body_or_error.keys() & SAID_AS[option] else "lost"


def tried(
    backend: type[ChatCompletionsBackend], model: str, **options: Any
) -> dict[str, Any] | InvalidOptions:
    try:
        return body_of(backend, model, **options)
    except InvalidOptions as error:
        return error


def test_every_option_has_its_place() -> None:
    assert SAID_AS.keys() | NOT_THE_SERVERS == SendOptions.model_fields.keys()
    assert {option for option, _ in CHOSEN} | {"model", "thinking"} == SAID_AS.keys()


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize(("backend", "model"), MODELS, ids=NAMES)
def test_an_option_is_said_or_refused(
    backend: type[ChatCompletionsBackend], model: str, thinking: bool | None
) -> None:
    wish = {} if thinking is None else {"thinking": thinking}
    if isinstance(tried(backend, model, **wish), InvalidOptions):
        return  # as the next test shows
    facts = backend(api_key="k").model_facts(model)

    found = {
        str(chosen): outcome(tried(backend, model, **wish, **chosen), option)
        for option, chosen in CHOSEN
        # Who doesn't think needn't be told not to.
        if not (option == "effort" and chosen["effort"] == "none" and not facts.thinks)
    }

    assert {name: what for name, what in found.items() if what not in {"said", "refused"}} == {}


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(("backend", "model"), MODELS, ids=NAMES)
def test_thinking_is_said_or_refused_or_as_it_is(
    backend: type[ChatCompletionsBackend], model: str, thinking: bool
) -> None:
    accepts = backend(api_key="k").model_facts(model).accepts

    found = outcome(tried(backend, model, thinking=thinking), "thinking")

    assert found in {"said", "refused"} or accepts.thinks_unasked is thinking


@pytest.mark.parametrize(("backend", "model"), MODELS, ids=NAMES)
def test_a_strict_tool_is_strict_or_refused(
    backend: type[ChatCompletionsBackend], model: str
) -> None:
    found = tried(backend, model, tools=(Tool(name="f", strict=True),))

    if isinstance(found, InvalidOptions):
        assert REASONS.search(str(found))
    else:
        assert found["tools"][0]["function"]["strict"] is True


@pytest.mark.parametrize(("backend", "model"), MODELS, ids=NAMES)
def test_thinking_and_effort_that_contradict_each_other_are_refused(
    backend: type[ChatCompletionsBackend], model: str
) -> None:
    with pytest.raises(InvalidOptions):
        body_of(backend, model, thinking=False, effort="high")
    with pytest.raises(InvalidOptions):
        body_of(backend, model, thinking=True, effort="none")
