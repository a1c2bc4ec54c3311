"""Other servers that speak chat completions: what is special about each, as data.

Sources, as collected in 2026-11: what Moonshot, Alibaba, vLLM, Ollama, llama.cpp, LM Studio and
OpenRouter document, and reports in public threads. Not measured live, but for llama.cpp.

What serves on one's own machine has the window that it was started with, which it doesn't tell:
say it in `models`, or in the option `context_window`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from agent_context.backend import Request
from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion
from agent_context.stream_events import Finished
from agent_context.wire.dialect import Dialect
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
)

__all__ = [
    "KimiBackend",
    "LMStudioBackend",
    "LlamaCppBackend",
    "OllamaBackend",
    "OpenRouterBackend",
    "QwenBackend",
    "VllmBackend",
]

_Fields = dict[str, Any]
_OTHERS = ChatCompletionsBackend.default_facts
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


def _efforts(**said: str) -> dict[str, _Fields]:
    return {effort: {"reasoning_effort": value} for effort, value in said.items()}


_KIMI_LIMITS = SamplingLimits(tool_choices=frozenset({"auto", "none", "named"}))
_KIMI = ParameterSupport(
    efforts=_efforts(minimal="low", low="low", medium="high", high="high", xhigh="high", max="max"),
    thinking={True: {}},
    thinks_unasked=True,
    plain=_KIMI_LIMITS,
    while_thinking=_KIMI_LIMITS,
    strict_tools=False,
    max_output_known=False,
    advice={
        "thinking": "it always thinks; effort='low' is the least, or take kimi-k2.6",
        "effort": "it always thinks; 'low' is the least, or take kimi-k2.6",
        "tool_choice": "use 'auto', and ask for the call in the prompt",
        "strict": "leave strict out",
        "temperature": "leave it out",
    },
)
_KIMI_SWITCHED = replace(
    _KIMI,
    thinking={True: {"thinking": {"type": "enabled"}}, False: {"thinking": {"type": "disabled"}}},
    efforts={"none": {"thinking": {"type": "disabled"}}},
    advice={**_KIMI.advice, "effort": "set thinking, or take kimi-k3"},
)
_KIMI_FACTS = ChatFacts(
    context_window=262_144,
    max_output=32_768,
    margin=1.1,
    default_reserve=16_384,
    thinks=True,
    sends_reasoning=True,
    accepts=_KIMI,
)
_KIMI_SWITCHED_FACTS = replace(_KIMI_FACTS, accepts=_KIMI_SWITCHED)
_MOONSHOT = "https://api.moonshot.ai/v1"


class KimiBackend(ChatCompletionsBackend):
    """Moonshot's API. Keys come from `MOONSHOT_API_KEY` or `MOONSHOTAI_API_KEY`.

    Keys of the Chinese site need `base_url="https://api.moonshot.cn/v1"`, those of the coding plan
    `"https://api.kimi.com/coding/v1"`.
    """

    vendor: ClassVar[str] = "kimi"
    default_base_url: ClassVar[str | None] = _MOONSHOT
    key_names: ClassVar[Mapping[str, str | None]] = {
        "MOONSHOT_API_KEY": _MOONSHOT,
        "MOONSHOTAI_API_KEY": _MOONSHOT,
    }
    # Calls without reasoning are refused while it thinks, and an empty one is none
    # (MoonshotAI/kimi-cli, litellm 1.110.2, 2026-11).
    dialect: ClassVar[Dialect] = Dialect(
        name="kimi",
        vendor="kimi",
        keep_reasoning=True,
        backfill_reasoning=True,
        empty_reasoning=" ",
    )
    default_model: ClassVar[str | None] = "kimi-k3"
    known_models: ClassVar[Mapping[str, ChatFacts]] = {
        "kimi-k3": _KIMI_FACTS,
        "kimi-k2.7": _KIMI_FACTS,
        "kimi-k2.6": _KIMI_SWITCHED_FACTS,
        "kimi-k2.5": _KIMI_SWITCHED_FACTS,
    }
    default_facts: ClassVar[ChatFacts] = replace(_KIMI_SWITCHED_FACTS, context_window=128_000)

    def facts_for_base_url(self, facts: ChatFacts) -> ChatFacts:
        """The coding plan takes a temperature of 1 alone."""
        if "/coding/" not in f"{self.base_url}/":
            return facts
        limits = replace(facts.accepts.plain, temperature=(1.0, 1.0))
        accepts = replace(facts.accepts, plain=limits, while_thinking=limits)
        return replace(facts, accepts=accepts)


class QwenBackend(ChatCompletionsBackend):
    """Alibaba's DashScope. Keys come from `DASHSCOPE_API_KEY`.

    Outside of China `base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1"`. How long
    it may think is `thinking_budget`, in `SendOptions.extra`.
    """

    vendor: ClassVar[str] = "qwen"
    default_base_url: ClassVar[str | None] = "https://dashscope.aliyuncs.com/compatible-mode/v1"
    key_names: ClassVar[Mapping[str, str | None]] = {"DASHSCOPE_API_KEY": default_base_url}
    dialect: ClassVar[Dialect] = Dialect(
        name="qwen", vendor="qwen", part_fields=frozenset({"cache_control"})
    )
    default_model: ClassVar[str | None] = "qwen3-max"
    default_facts: ClassVar[ChatFacts] = replace(
        _OTHERS,
        margin=1.1,
        thinks=True,
        accepts=ParameterSupport(
            max_output_known=False,
            thinking={True: {"enable_thinking": True}, False: {"enable_thinking": False}},
            efforts={"none": {"enable_thinking": False}},
            while_thinking=SamplingLimits(tool_choices=frozenset({"auto", "none"})),
            formats_while_thinking=frozenset({"text"}),
            advice={
                "effort": "set thinking=True, and extra={'thinking_budget': tokens}",
                "tool_choice": "set thinking=False to force a call",
                "response_format": "set thinking=False, or describe the format in the prompt",
            },
        ),
    )

    async def send(self, request: Request) -> Completion:
        """Ask the model and return its whole answer; by a stream, as many think in no other way."""
        async for event in self.send_stream(request):
            if isinstance(event, Finished):
                return event.completion
        raise BackendError("qwen: no answer", kind=ErrorKind.PROTOCOL, vendor=self.vendor)


def _switch(name: str) -> dict[bool, _Fields]:
    """Thinking as an argument of the model's chat template."""
    return {value: {"chat_template_kwargs": {name: value}} for value in (True, False)}


_TEMPLATE = ParameterSupport(
    max_output_known=False,
    thinking=_switch("enable_thinking"),
    efforts={
        "none": _switch("enable_thinking")[False],
        **{effort: {"reasoning_effort": effort} for effort in _EFFORTS},
    },
)
"""Where the options fill in the model's own template."""


class VllmBackend(ChatCompletionsBackend):
    """A vLLM server.

    Templates of some models refuse a system message that isn't the first message: it goes out as a
    user's, and neighbours of one role as one message.
    """

    vendor: ClassVar[str] = "vllm"
    default_base_url: ClassVar[str | None] = "http://localhost:8000/v1"
    dialect: ClassVar[Dialect] = Dialect(
        name="vllm", vendor="vllm", needs_user=True, merge_same_role=True, late_system_role="user"
    )
    default_facts: ClassVar[ChatFacts] = replace(
        _OTHERS, context_window=32_768, margin=1.1, accepts=_TEMPLATE
    )


class OllamaBackend(ChatCompletionsBackend):
    """An Ollama server.

    What exceeds its window (`OLLAMA_CONTEXT_LENGTH` is what sets it), older versions cut off at the
    conversation's beginning without a word: 4,096 is taken for granted here.
    """

    vendor: ClassVar[str] = "ollama"
    default_base_url: ClassVar[str | None] = "http://localhost:11434/v1"
    dialect: ClassVar[Dialect] = Dialect(
        name="ollama", vendor="ollama", image_urls=("data:",), other_parts=frozenset()
    )
    default_facts: ClassVar[ChatFacts] = replace(
        _OTHERS,
        context_window=4_096,
        max_output=2_048,
        default_reserve=1_024,
        margin=1.1,
        accepts=ParameterSupport(
            max_output_known=False,
            thinking={True: {"reasoning_effort": "medium"}, False: {"reasoning_effort": "none"}},
            efforts=_efforts(
                none="none", minimal="low", low="low", medium="medium", high="high",
                xhigh="high", max="high",
            ),
            plain=SamplingLimits(tool_choices=frozenset({"auto"})),
            while_thinking=SamplingLimits(tool_choices=frozenset({"auto"})),
            strict_tools=False,
            advice={
                "tool_choice": "it would be ignored; leave the tools out, or ask in the prompt",
                "strict": "leave strict out",
            },
        ),
    )  # fmt: skip


class LlamaCppBackend(ChatCompletionsBackend):
    """llama.cpp's own server (`llama-server`), with templates as vLLM's."""

    vendor: ClassVar[str] = "llamacpp"
    default_base_url: ClassVar[str | None] = "http://localhost:8080/v1"
    dialect: ClassVar[Dialect] = replace(VllmBackend.dialect, name="llamacpp", vendor="llamacpp")
    default_model: ClassVar[str | None] = "default"  # it serves one, whatever it is called
    default_facts: ClassVar[ChatFacts] = replace(
        _OTHERS,
        context_window=4_096,
        max_output=2_048,
        default_reserve=1_024,
        margin=1.1,
        accepts=_TEMPLATE,
    )

    def is_same_model(self, asked: str, answered: str) -> bool:
        """It serves one model: who asks for the default gets what was asked for."""
        return asked == self.default_model or super().is_same_model(asked, answered)


class LMStudioBackend(ChatCompletionsBackend):
    """LM Studio's server, with templates as vLLM's."""

    vendor: ClassVar[str] = "lmstudio"
    default_base_url: ClassVar[str | None] = "http://localhost:1234/v1"
    dialect: ClassVar[Dialect] = replace(VllmBackend.dialect, name="lmstudio", vendor="lmstudio")
    default_facts: ClassVar[ChatFacts] = replace(
        LlamaCppBackend.default_facts,
        accepts=replace(
            _TEMPLATE,
            thinking={},
            efforts={effort: {"reasoning_effort": effort} for effort in _EFFORTS},
            advice={"thinking": "choose it where the model is loaded", "effort": "leave it out"},
        ),
    )


class OpenRouterBackend(ChatCompletionsBackend):
    """OpenRouter. Keys come from `OPENROUTER_API_KEY`.

    A model is named with its maker: `deepseek/deepseek-v4-pro`. What a server calls
    `reasoning_details` goes back to it unchanged.
    """

    vendor: ClassVar[str] = "openrouter"
    default_base_url: ClassVar[str | None] = "https://openrouter.ai/api/v1"
    key_names: ClassVar[Mapping[str, str | None]] = {"OPENROUTER_API_KEY": default_base_url}
    dialect: ClassVar[Dialect] = Dialect(
        name="openrouter",
        vendor="openrouter",
        keep_reasoning=True,
        reasoning_field="reasoning",
        max_call_id=40,
        needs_user=True,
        part_fields=frozenset({"cache_control"}),
    )
    default_model: ClassVar[str | None] = "openrouter/auto"
    default_facts: ClassVar[ChatFacts] = replace(
        _OTHERS,
        margin=1.1,
        thinks=True,
        sends_reasoning=True,
        accepts=ParameterSupport(
            max_output_known=False,
            thinking={value: {"reasoning": {"enabled": value}} for value in (True, False)},
            efforts={effort: {"reasoning": {"effort": effort}} for effort in ("none", *_EFFORTS)},
        ),
    )

    def is_same_model(self, asked: str, answered: str) -> bool:
        """The router is asked to choose."""
        return asked == self.default_model or super().is_same_model(asked, answered)
