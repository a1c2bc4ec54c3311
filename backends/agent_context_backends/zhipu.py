"""Zhipu (BigModel in China, Z.ai elsewhere): its addresses, its models and what they take.

Sources: docs.bigmodel.cn and docs.z.ai, chat completion and thinking (2026-09, 2026-10); zai-sdk
0.2.3 (2026); litellm 1.110.2 and pydantic-ai 2.68 (2026-11) for windows and recorded answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from agent_context.models import CachePolicy, TemplateOverhead
from agent_context.wire.dialect import Dialect
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
    as_responses,
)

__all__ = ["ZhipuBackend"]

_CHINA = "https://open.bigmodel.cn/api/paas/v4"
_WORLD = "https://api.z.ai/api/paas/v4"

_ON = {"thinking": {"type": "enabled"}}
_OFF = {"thinking": {"type": "disabled"}}


def _efforts(**said: str) -> dict[str, dict[str, Any]]:
    return {effort: {**_ON, "reasoning_effort": value} for effort, value in said.items()}


_LIMITS = SamplingLimits(
    temperature=(0.0, 1.0), top_p=(0.01, 1.0), stop=4, tool_choices=frozenset({"auto"})
)

_SWITCHED = ParameterSupport(
    thinking={True: _ON, False: _OFF},
    efforts={"none": _OFF},
    thinks_unasked=True,
    plain=_LIMITS,
    while_thinking=_LIMITS,
    strict_tools=False,
    most_tools=128,
    longest_tool_name=64,
    response_formats=frozenset({"text", "json_object"}),
    seed=False,
    images=False,
    other_parts=frozenset(),
    advice={
        "effort": "set thinking, or take glm-5.2",
        "temperature": "choose from 0 to 1",
        "tool_choice": "leave the tools out of this call, or ask for one in the prompt",
        "strict": "leave strict out",
        "response_format": "use json_object, and describe the schema in the prompt",
        "seed": "leave it out; temperature=0 is the nearest",
    },
)
_GLM_5_2 = replace(
    _SWITCHED,
    efforts={
        "none": {**_OFF, "reasoning_effort": "none"},
        **_efforts(
            minimal="minimal", low="low", medium="medium", high="high", xhigh="xhigh", max="max"
        ),
    },
)
_GLM_5_3 = replace(
    _SWITCHED,
    thinking={True: _ON},
    efforts=_efforts(minimal="low", low="low", medium="high", high="high", xhigh="high", max="max"),
    advice={
        **_SWITCHED.advice,
        "thinking": "it always thinks; effort='low' is the least, or take glm-5.2",
        "effort": "it always thinks; 'low' is the least, or take glm-5.2",
    },
)

_SEES = replace(_SWITCHED, images=True, other_parts=frozenset({"video_url", "file_url"}))

# The text of the documentation says half price, its price tables what stands here.
_CACHE = CachePolicy(
    ratio=0.19,
    min_tokens=500,
    source="docs.z.ai, context caching and pricing (2026-10); litellm 1.110.2 (2026-11)",
)


def _as_items(accepts: ParameterSupport) -> ParameterSupport:
    """What a model takes on the Responses API, where the effort alone says how to think."""
    items = as_responses(accepts)
    efforts = {
        name: {"reasoning": said["reasoning"]}
        for name, said in items.efforts.items()
        if "reasoning" in said
    }
    silent = {False: efforts["none"]} if "none" in efforts else {}
    switch = "the Responses API has no switch for it; use api='chat'"
    advice = (
        items.advice
        if silent or not accepts.efforts.get("none")
        else {
            **items.advice,
            "thinking": switch,
            "effort": switch,
        }
    )
    return replace(items, thinking={True: {}, **silent}, efforts=efforts, advice=advice)


_200K = ChatFacts(
    context_window=200_000,
    max_output=131_072,
    vocabulary="glm4",
    # Upper estimates after the templates of GLM-4.5 and 4.7 (2026-11); not measured.
    overhead=TemplateOverhead(
        request=5,
        system=2,
        user=2,
        assistant=6,
        tool=8,
        call=8,
        argument=10,
        tools=115,
        tool_syntax="spaced_json",
    ),
    default_reserve=16_384,
    thinks=True,
    sends_reasoning=True,
    cache=_CACHE,
    accepts=_SWITCHED,
    responses=_as_items(_SWITCHED),
)
_5_2 = replace(
    _200K,
    context_window=1_000_000,
    cache=replace(_CACHE, ratio=0.186, price=1.4),
    accepts=_GLM_5_2,
    responses=_as_items(_GLM_5_2),
)
_5_3 = replace(_5_2, accepts=_GLM_5_3, responses=_as_items(_GLM_5_3))
_5_3_FLASH = replace(_5_3, cache=replace(_CACHE, ratio=0.2, price=0.15))


class ZhipuBackend(ChatCompletionsBackend):
    """Zhipu's API. Each of its two sites has keys of its own.

    The key of `ZAI_API_KEY` goes to api.z.ai; that of `ZHIPUAI_API_KEY`, `ZHIPU_API_KEY` or
    `BIGMODEL_API_KEY`, and one that is given, to open.bigmodel.cn. `base_url` overrides both.
    """

    vendor: ClassVar[str] = "zhipu"
    default_base_url: ClassVar[str | None] = _CHINA
    key_names: ClassVar[Mapping[str, str | None]] = {
        "ZAI_API_KEY": _WORLD,
        "ZHIPUAI_API_KEY": _CHINA,
        "ZHIPU_API_KEY": _CHINA,
        "BIGMODEL_API_KEY": _CHINA,
    }
    base_url_names: ClassVar[tuple[str, ...]] = (
        "ZAI_BASE_URL",
        "ZAI_API_BASE",
        "BIGMODEL_API_BASE",
    )
    headers: ClassVar[Mapping[str, str]] = {"Accept-Language": "en-US,en"}
    dialect: ClassVar[Dialect] = Dialect(
        name="zhipu",
        vendor="zhipu",
        keep_reasoning=True,
        needs_user=True,
        merge_same_role=True,
        names=False,
    )
    responses_base_urls: ClassVar[Mapping[str, str]] = {
        _CHINA: "https://open.bigmodel.cn/api/v1",
        _WORLD: "https://api.z.ai/api/v1",
    }
    responses_dialect: ClassVar[Dialect] = Dialect(
        name="zhipu-responses",
        vendor="zhipu",
        api="responses",
        keep_reasoning=True,
        max_call_id=64,
        unique_call_ids=True,
        calls_last=True,
        needs_user=True,
        merge_same_role=True,
    )
    default_model: ClassVar[str | None] = "glm-5.2"
    known_models: ClassVar[Mapping[str, ChatFacts]] = {
        "glm-5.3": _5_3,
        "glm-5.3-flash": _5_3_FLASH,
        "glm-5.3-flashx": _5_3_FLASH,
        "glm-5.2": _5_2,
        "glm-5.1": _200K,
        "glm-5": _200K,
        "glm-5v": replace(_200K, accepts=_SEES),
        "glm-4.7": replace(_200K, cache=replace(_CACHE, ratio=0.183, price=0.6)),
        "glm-4.7-flash": replace(_200K, cache=replace(_CACHE, price=0.0)),
        "glm-4.6": _200K,
        "glm-4.6v": replace(_200K, context_window=128_000, max_output=32_768, accepts=_SEES),
        "glm-4.5": replace(_200K, context_window=128_000, max_output=98_304),
        "glm-4.5v": replace(_200K, context_window=128_000, max_output=98_304, accepts=_SEES),
    }
    default_facts: ClassVar[ChatFacts] = replace(
        _200K,
        context_window=128_000,
        max_output=32_768,
        accepts=replace(_SEES, max_output_known=False),
        responses=replace(_as_items(_SEES), max_output_known=False),
    )
