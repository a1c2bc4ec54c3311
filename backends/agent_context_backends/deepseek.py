"""DeepSeek: its addresses, its models and what they take.

Sources: api-docs.deepseek.com, models and thinking mode (2026-10); deepseek-recipe 0.2.0, the
vendor's own validator (2026-11); the README of @deepseek-ai/dsh-llm-deepseek 0.1.0-rc.8 (2026-08);
recorded answers of api.deepseek.com/responses (pydantic/pydantic-ai, 2026-08).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from agent_context.models import CachePolicy, TemplateOverhead
from agent_context.wire.dialect import Dialect
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
    as_responses,
)

__all__ = ["DeepSeekBackend"]

_ON = {"thinking": {"type": "enabled"}}
_OFF = {"thinking": {"type": "disabled"}}

# Temperature is ignored while thinking, and so is top_p, but for the sliver that flash takes.
_THINKING = SamplingLimits(temperature=None, top_p=None, tool_choices=frozenset({"auto", "none"}))

_PRO = ParameterSupport(
    thinking={True: _ON, False: _OFF},
    efforts={
        "none": _OFF,
        "minimal": {**_ON, "reasoning_effort": "low"},
        "low": {**_ON, "reasoning_effort": "low"},
        "medium": {**_ON, "reasoning_effort": "high"},
        "high": {**_ON, "reasoning_effort": "high"},
        "xhigh": {**_ON, "reasoning_effort": "high"},
        "max": {**_ON, "reasoning_effort": "max"},
    },
    thinks_unasked=True,
    while_thinking=_THINKING,
    strict_tools=False,
    response_formats=frozenset({"text", "json_object"}),
    images=False,  # they would be dropped, with status 200
    other_parts=frozenset(),
    advice={
        "temperature": "it would be ignored; set thinking=False, or leave it out",
        "top_p": "it would be ignored; leave it out",
        "tool_choice": "set thinking=False to force a call",
        "strict": "use base_url='https://api.deepseek.com/beta'",
        "response_format": "use api='responses', or json_object with the schema in the prompt",
    },
)
_FLASH = replace(
    _PRO,
    plain=SamplingLimits(top_p=(1.0, 1.0)),
    while_thinking=replace(_THINKING, top_p=(0.95, 1.0)),
    images=True,
    other_parts=frozenset({"file"}),
)

# Measured with the renderer of deepseek-recipe 0.2.0 and the vocabulary of V4 (2026-11).
_FLASH_OVERHEAD = TemplateOverhead(
    request=3,
    system=1,
    user=1,
    assistant=3,
    tool=8,
    reasoning=1,
    calls=10,
    call=10,
    argument=14,
    tools=214,
    tool_syntax="spaced_json",
    thinking=26,
)
_PRO_OVERHEAD = replace(
    _FLASH_OVERHEAD,
    calls=14,
    call=12,
    tools=223,
    thinking=79,
    efforts={"minimal": 0, "low": 0, "max": 92},
)

# Where entries begin and what they round to is not documented: these are the recorded figures.
_CACHE = CachePolicy(
    ratio=1 / 50,
    min_tokens=1_024,
    granularity=64,
    match_policy="requests",
    ttl=3_600.0,
    price=0.30,
    source="api-docs.deepseek.com, context caching (2026-10); litellm 1.110.2, prices (2026-11)",
)


def _as_items(accepts: ParameterSupport) -> ParameterSupport:
    """What a model takes on the Responses API, where the effort alone switches thinking off."""
    items = as_responses(accepts)
    silent = {"reasoning": {"effort": "none"}}
    efforts = {
        name: {"reasoning": said["reasoning"]} if "reasoning" in said else silent
        for name, said in items.efforts.items()
    }
    return replace(
        items,
        thinking={True: {}, False: silent},
        efforts=efforts,
        strict_tools=True,
        response_formats=accepts.response_formats | {"json_schema"},
    )


_FLASH_FACTS = ChatFacts(
    context_window=1_048_576,
    max_output=393_216,
    vocabulary="deepseek_v3",
    default_reserve=16_384,
    thinks=True,
    sends_reasoning=True,
    reasoning_needs_tools=True,
    overhead=_FLASH_OVERHEAD,
    cache=_CACHE,
    accepts=_FLASH,
    responses=_as_items(_FLASH),
)
_PRO_FACTS = replace(
    _FLASH_FACTS,
    overhead=_PRO_OVERHEAD,
    cache=replace(_CACHE, ratio=1 / 30, price=1.32),
    accepts=_PRO,
    responses=_as_items(_PRO),
)


class DeepSeekBackend(ChatCompletionsBackend):
    """DeepSeek's API. Keys come from `DEEPSEEK_API_KEY`."""

    vendor: ClassVar[str] = "deepseek"
    default_base_url: ClassVar[str | None] = "https://api.deepseek.com"
    key_names: ClassVar[Mapping[str, str | None]] = {"DEEPSEEK_API_KEY": default_base_url}
    base_url_names: ClassVar[tuple[str, ...]] = ("DEEPSEEK_BASE_URL", "DEEPSEEK_API_BASE")
    ends_with_done: ClassVar[bool] = True
    dialect: ClassVar[Dialect] = Dialect(
        name="deepseek", vendor="deepseek", keep_reasoning=True, backfill_reasoning=True
    )
    responses_dialect: ClassVar[Dialect] = Dialect(
        name="deepseek-responses",
        vendor="deepseek",
        api="responses",
        keep_reasoning=True,
        backfill_reasoning=True,
        unique_call_ids=True,
        calls_last=True,
        merge_same_role=True,
    )
    default_model: ClassVar[str | None] = "deepseek-flash"
    aliases: ClassVar[Mapping[str, str]] = {
        "deepseek-v4-flash": "deepseek-flash",
        "deepseek-v4-flash-vision-exp": "deepseek-flash",
    }
    known_models: ClassVar[Mapping[str, ChatFacts]] = {
        "deepseek-flash": _FLASH_FACTS,
        "deepseek-v4-pro": _PRO_FACTS,
        # Older names that are still served, by deepseek-flash.
        "deepseek-v4-flash": _FLASH_FACTS,
    }
    default_facts: ClassVar[ChatFacts] = replace(
        _PRO_FACTS,
        context_window=128_000,
        max_output=8_192,
        default_reserve=8_192,
        cache=replace(_CACHE, ratio=1 / 30, price=None),
        accepts=replace(_PRO, max_output_known=False),
        responses=replace(_as_items(_PRO), max_output_known=False),
    )

    def facts_for_base_url(self, facts: ChatFacts) -> ChatFacts:
        """Strict tools are taken under `/beta` alone."""
        strict = self.base_url.endswith("/beta")
        return replace(facts, accepts=replace(facts.accepts, strict_tools=strict))
