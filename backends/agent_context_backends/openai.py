"""OpenAI: its addresses, its models and what they take.

Sources: the model list of openai 3.57 (2026-11); platform.openai.com, models and reasoning
(2026-11); litellm 1.110.2 (2026-11) for windows; openai/openai-openapi#541 and the threads that
quote it (2026) for tools together with reasoning; vercel/ai#10932 (2025-12) for sampling without;
decolua/9router#393 (2026-03) for the length of a call's id on the Responses API.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import httpx

from agent_context.models import CachePolicy, ModelFacts, TemplateOverhead
from agent_context.wire.dialect import Dialect
from agent_context_backends.chat_completions import (
    ApiChoice,
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
    as_responses,
)

__all__ = ["OpenAIBackend"]


def _efforts(**said: str) -> dict[str, dict[str, Any]]:
    return {effort: {"reasoning_effort": value} for effort, value in said.items()}


_ADVICE = {
    "temperature": "leave it out, or take a model that doesn't reason, such as gpt-4.1",
    "top_p": "leave it out, or take a model that doesn't reason, such as gpt-4.1",
    "stop": "leave it out, or take a model that doesn't reason, such as gpt-4.1",
    "thinking": "it always reasons; choose its least effort, or take gpt-5.4",
    "tools_while_thinking": "use the Responses API (api='responses'), or set effort='none'",
}

_CLASSIC = ParameterSupport(
    max_tokens="max_completion_tokens",
    thinking={False: {}},
    efforts={"none": {}},
    plain=SamplingLimits(stop=4),
    while_thinking=SamplingLimits(stop=4),
    most_tools=128,
    longest_tool_name=64,
    other_parts=frozenset({"input_audio", "file"}),
    advice={
        "thinking": "take a model that reasons, such as gpt-5.4",
        "effort": "take a model that reasons, such as gpt-5.4",
    },
)
_REASONS = SamplingLimits(temperature=(1.0, 1.0), top_p=None, stop=None)

_O = replace(
    _CLASSIC,
    thinking={True: {}},
    efforts=_efforts(low="low", medium="medium", high="high"),
    thinks_unasked=True,
    plain=_REASONS,
    while_thinking=_REASONS,
    advice=_ADVICE,
)
_GPT_5 = replace(_O, efforts=_efforts(minimal="minimal", low="low", medium="medium", high="high"))
_GPT_5_2 = replace(
    _O,
    thinking={True: {"reasoning_effort": "medium"}, False: {"reasoning_effort": "none"}},
    efforts=_efforts(
        none="none", minimal="low", low="low", medium="medium", high="high", xhigh="xhigh"
    ),
    thinks_unasked=False,
    plain=replace(_REASONS, temperature=(0.0, 2.0), top_p=(0.0, 1.0)),
)
_GPT_5_1 = replace(
    _GPT_5_2, efforts=_efforts(none="none", minimal="low", low="low", medium="medium", high="high")
)
_GPT_5_4 = replace(_GPT_5_2, tools_while_thinking=False)
_GPT_5_6 = replace(_GPT_5_4, thinks_unasked=True, plain=_REASONS)
_GPT_6 = replace(_GPT_5_6, efforts={**_GPT_5_6.efforts, **_efforts(max="max")})
_ASTRA = replace(
    _O,
    efforts=_efforts(low="low", medium="medium", high="high", xhigh="xhigh", max="max"),
    tools_while_thinking=False,
    plain=replace(_REASONS, temperature=None),
    while_thinking=replace(_REASONS, temperature=None),
    advice={**_ADVICE, "tools_while_thinking": "use the Responses API (api='responses')"},
)

_CACHE = CachePolicy(
    ratio=0.1,
    min_tokens=1_024,
    granularity=128,
    ttl=300.0,
    source="platform.openai.com, prompt caching (2026-10); litellm 1.110.2 (2026-11) for prices",
)
# From gpt-5.6 on an entry ends at the last user or tool message, and writing it costs extra.
_CACHE_5_6 = replace(_CACHE, write=1.25, granularity=1, match_policy="breakpoints", ttl=1_800.0)

_GPT_4O = ChatFacts(
    context_window=128_000,
    max_output=16_384,
    overhead=TemplateOverhead(tool_syntax="outline"),
    cache=replace(_CACHE, ratio=0.5),
    accepts=_CLASSIC,
)
_GPT_4_1 = replace(
    _GPT_4O, context_window=1_047_576, max_output=32_768, cache=replace(_CACHE, ratio=0.25)
)
_O3 = replace(
    _GPT_4O,
    context_window=200_000,
    max_output=100_000,
    default_reserve=16_384,
    thinks=True,
    cache=replace(_CACHE, ratio=0.25),
    accepts=_O,
)
_FIVE = replace(_O3, context_window=400_000, max_output=128_000, cache=_CACHE, accepts=_GPT_5)
_LONG = replace(_FIVE, context_window=1_050_000, accepts=_GPT_5_4)
# The vocabulary of gpt-6 isn't published.
_SIX = replace(_LONG, margin=1.1, cache=_CACHE_5_6, accepts=_GPT_6)


def _on_both(facts: ChatFacts) -> ChatFacts:
    """The facts, with what the model takes on the Responses API.

    Nothing is stored there; reasoning comes and goes encrypted, which models that don't reason
    refuse to do.
    """
    items = as_responses(facts.accepts)
    if set(facts.accepts.efforts) != {"none"}:
        items = replace(items, always={**items.always, "include": ["reasoning.encrypted_content"]})
    return replace(facts, responses=items)


_MODELS = {
    "gpt-4o": _GPT_4O,
    "gpt-4.1": _GPT_4_1,
    "o3": _O3,
    "o4-mini": _O3,
    "gpt-5": _FIVE,
    "gpt-5.1": replace(_FIVE, accepts=_GPT_5_1),
    "gpt-5.2": replace(_FIVE, accepts=_GPT_5_2),
    "gpt-5.4": replace(_LONG, cache=replace(_CACHE, price=2.5)),
    "gpt-5.5": replace(_LONG, cache=replace(_CACHE, price=5.0)),
    "gpt-5.6": replace(_LONG, cache=_CACHE_5_6, accepts=_GPT_5_6),
    "gpt-6-luna": replace(_SIX, cache=replace(_CACHE_5_6, price=0.1)),
    "gpt-6-sol": _SIX,
    "gpt-6.1-sol": replace(_SIX, cache=replace(_CACHE_5_6, ratio=0.05, price=2.0)),
    "gpt-6.1-terra": _SIX,
    "gpt-6.2-sol": _SIX,
    "gpt-6-astra": replace(_SIX, accepts=_ASTRA, cache=replace(_CACHE_5_6, price=10.0)),
    "gpt-6.2-astra": replace(_SIX, accepts=_ASTRA, cache=replace(_CACHE_5_6, price=8.0)),
}

_BASE_URL = "https://api.openai.com/v1"


class OpenAIBackend(ChatCompletionsBackend):
    """OpenAI's API. Keys come from `OPENAI_API_KEY`.

    The Responses API is asked where chat completions refuse: for tools while a model thinks.
    """

    vendor: ClassVar[str] = "openai"
    default_base_url: ClassVar[str | None] = _BASE_URL
    key_names: ClassVar[Mapping[str, str | None]] = {"OPENAI_API_KEY": _BASE_URL}
    base_url_names: ClassVar[tuple[str, ...]] = ("OPENAI_BASE_URL",)
    dialect: ClassVar[Dialect] = Dialect(name="openai", vendor="openai", max_call_id=40)
    responses_dialect: ClassVar[Dialect] = Dialect(
        name="openai-responses",
        vendor="openai",
        api="responses",
        max_call_id=64,
        unique_call_ids=True,
    )
    default_model: ClassVar[str | None] = "gpt-5.4"
    known_models: ClassVar[Mapping[str, ChatFacts]] = {
        name: _on_both(facts) for name, facts in _MODELS.items()
    }
    default_facts: ClassVar[ChatFacts] = _on_both(
        replace(
            _GPT_4O,
            margin=1.1,
            cache=None,
            accepts=replace(
                _GPT_5_2,
                max_output_known=False,
                plain=SamplingLimits(stop=4),
                while_thinking=SamplingLimits(stop=4),
                efforts={**_GPT_5_2.efforts, **_efforts(minimal="minimal", max="max")},
            ),
        )
    )

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api: ApiChoice = "auto",
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        models: Mapping[str, ModelFacts] | None = None,
        connect_timeout: float = 15.0,
        idle_timeout: float = 300.0,
    ) -> None:
        """As any; organisation and project come from `OPENAI_ORG_ID` and `OPENAI_PROJECT_ID`."""
        named = {"OpenAI-Organization": "OPENAI_ORG_ID", "OpenAI-Project": "OPENAI_PROJECT_ID"}
        account = {header: os.environ.get(name, "") for header, name in named.items()}
        super().__init__(
            api_key=api_key,
            base_url=base_url,
            api=api,
            transport=transport,
            headers={
                **{name: value for name, value in account.items() if value},
                **(headers or {}),
            },
            models=models,
            connect_timeout=connect_timeout,
            idle_timeout=idle_timeout,
        )
