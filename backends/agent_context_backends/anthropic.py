"""Anthropic: its Messages API, its models and what they take.

Sources: anthropic 2.14 (2026-11) for fields and models; platform.claude.com, prompt caching and
thinking (2026-07); vercel.com/docs/ai-gateway, Anthropic reasoning (2026-09); genai-prices
(2026-11) for prices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from agent_context._context.persistent_vector import EMPTY, PersistentVector
from agent_context._context.zones import Zones
from agent_context.backend import Request
from agent_context.messages import Message, Role
from agent_context.models import CachePolicy
from agent_context.stream_events import StreamEvent
from agent_context.wire.dialect import Dialect
from agent_context.wire.message_blocks import system_blocks
from agent_context.wire.messages import parse_completion, parse_event
from agent_context_backends._endpoints import MESSAGES, Api
from agent_context_backends._request_fields import message_parameters
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
)

__all__ = ["AnthropicBackend"]

_ADAPTIVE = {"thinking": {"type": "adaptive"}}
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384}
"""Tokens of thinking for models that want a figure; they count towards `max_tokens`."""


def _budget(tokens: int) -> dict[str, Any]:
    return {"thinking": {"type": "enabled", "budget_tokens": tokens}}


def _efforts(*names: str) -> dict[str, dict[str, Any]]:
    return {
        "none": {},
        **{name: {**_ADAPTIVE, "output_config": {"effort": name}} for name in names},
    }


_FREE = SamplingLimits(temperature=(0.0, 1.0))
_WHILE_THINKING = SamplingLimits(
    temperature=(1.0, 1.0), top_p=(0.95, 1.0), tool_choices=frozenset({"auto", "none"})
)
_BY_BUDGET = ParameterSupport(
    thinking={True: _budget(_BUDGETS["medium"]), False: {}},
    efforts={"none": {}, **{name: _budget(tokens) for name, tokens in _BUDGETS.items()}},
    plain=_FREE,
    while_thinking=_WHILE_THINKING,
    longest_tool_name=128,
    response_formats=frozenset({"text", "json_schema"}),
    other_parts=frozenset({"file"}),
    seed=False,
    advice={
        "seed": "leave it out; temperature=0 is the nearest",
        "response_format": "use json_schema",
        "temperature": "leave it out while the model thinks",
        "tool_choice": "while it thinks it chooses itself: use auto or none",
    },
)
_ADAPTIVELY = replace(
    _BY_BUDGET,
    thinking={True: _ADAPTIVE, False: {}},
    efforts=_efforts("low", "medium", "high", "max"),
)
_LATER = replace(_ADAPTIVELY, efforts=_efforts("low", "medium", "high", "xhigh", "max"))

_CACHE = CachePolicy(
    ratio=0.1,
    write=1.25,
    min_tokens=1024,
    match_policy="breakpoints",
    ttl=300.0,
    source="platform.claude.com, prompt caching (2026-07)",
)


def _cache(price: float, min_tokens: int) -> CachePolicy:
    return replace(_CACHE, price=price, min_tokens=min_tokens)


_4_5 = ChatFacts(
    context_window=200_000,
    max_output=64_000,
    margin=1.2,  # the vocabulary is not published; what the vendor reports corrects it
    default_reserve=16_384,
    thinks=True,
    sends_reasoning=True,
    cache=_cache(3.0, 1024),
    output_price=15.0,
    accepts=_BY_BUDGET,
)
_4_6 = replace(_4_5, context_window=1_000_000, accepts=_ADAPTIVELY)
_4_7 = replace(
    _4_6,
    max_output=128_000,
    margin=1.35,
    cache=_cache(5.0, 4096),
    output_price=25.0,
    accepts=_LATER,
)
_UNKNOWN_SIZE = replace(
    _4_7,
    cache=_CACHE,
    output_price=None,
    accepts=replace(_LATER, max_output_known=False),
)


class AnthropicBackend(ChatCompletionsBackend):
    """Anthropic's Messages API.

    System messages of the immutable zone become `system`; those that come later, summaries and
    scratch, are said by the user. Thoughts go back with their signatures, to Anthropic alone. Cache
    breakpoints stand behind the tools and the system prompt, where the last request ended, and
    where this one's stored messages end; `cache=False` sets none.
    """

    vendor: ClassVar[str] = "anthropic"
    default_base_url: ClassVar[str | None] = "https://api.anthropic.com"
    messages_path: ClassVar[str] = "/v1/messages"
    key_names: ClassVar[Mapping[str, str | None]] = {
        "ANTHROPIC_API_KEY": "https://api.anthropic.com"
    }
    base_url_names: ClassVar[tuple[str, ...]] = ("ANTHROPIC_BASE_URL",)
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}
    dialect: ClassVar[Dialect] = Dialect(
        name="anthropic",
        vendor="anthropic",
        api="messages",
        keep_reasoning=True,
        max_call_id=64,
        plain_call_ids=True,
        needs_user=True,
        user_last=True,
        names=False,
        marks_cache=True,
        other_parts=frozenset({"file"}),
    )
    default_model: ClassVar[str | None] = "claude-sonnet-4-6"
    known_models: ClassVar[Mapping[str, ChatFacts]] = {
        "claude-haiku-4-5": replace(_4_5, cache=_cache(1.0, 4096), output_price=5.0),
        "claude-sonnet-4-5": _4_5,
        "claude-opus-4-5": replace(_4_5, cache=_cache(5.0, 4096), output_price=25.0),
        "claude-sonnet-4-6": _4_6,
        "claude-opus-4-6": replace(
            _4_6, max_output=128_000, cache=_cache(5.0, 4096), output_price=25.0
        ),
        "claude-opus-4-7": _4_7,
        "claude-opus-4-8": _4_7,
    }
    default_facts: ClassVar[ChatFacts] = _UNKNOWN_SIZE

    def key_headers(self, key: str) -> Mapping[str, str]:
        """A key in its own header; a token of OAuth as a bearer's."""
        return (
            {"Authorization": f"Bearer {key}"}
            if key.startswith("sk-ant-oat")
            else {"x-api-key": key}
        )

    def parameters(self, request: Request, model: str, api: Api = MESSAGES) -> dict[str, Any]:
        """The fields of the request's body that say its options; `extra` is not among them."""
        del api  # there is one
        facts = self.model_facts(model)
        return message_parameters(request.options, facts, who=f"{self.vendor}'s {model}")

    def split_system(self, zones: Zones) -> tuple[Mapping[str, Any], Zones]:
        """The system messages of the immutable zone as `system`, and the rest."""
        system = [record for record in zones.immutable if record.role is Role.SYSTEM]
        if not system:
            return {}, zones
        others = [record for record in zones.immutable if record.role is not Role.SYSTEM]
        rest = PersistentVector.of(others) if others else EMPTY
        mark = {"type": "ephemeral"} if self.dialect.marks_cache else None
        said = {"system": system_blocks(system, mark=mark)}
        return said, Zones(rest, zones.compressed, zones.incremental, zones.open_calls)

    def extract_messages(self, response: Mapping[str, Any]) -> tuple[Message, ...]:
        """The message in a whole answer as the API sent it."""
        if "content" not in response:
            return super().extract_messages(response)
        return (parse_completion(response, vendor=self.vendor).message,)

    def classify_chunk(self, chunk: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
        """What one event of a streamed answer means on its own."""
        return parse_event(chunk) if "type" in chunk else super().classify_chunk(chunk)

    def _api_for(self, request: Request) -> Api:
        del request
        return MESSAGES
