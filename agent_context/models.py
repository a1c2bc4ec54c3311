"""What is known of a model: its window, how its tokens count, how its prompts are cached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["ESTIMATED", "CachePolicy", "ModelFacts", "TemplateOverhead"]

ESTIMATED: Final = "estimated"
"""A value for `ModelFacts.vocabulary`: estimate tokens from the text, load no vocabulary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOverhead:
    """Tokens that a model's chat template adds to the texts of a request."""

    request: int = 3
    """Once per request, including the start of the answer."""
    system: int = 4
    user: int = 4
    assistant: int = 4
    tool: int = 4
    """Each message of the role; the same for the three above."""
    reasoning: int = 0
    """A message with reasoning that is sent."""
    calls: int = 0
    """A message with calls, once."""
    call: int = 12
    """Each call."""
    argument: int | None = None
    """Each argument of a call; None if the arguments are written as the JSON that they are."""
    tools: int = 0
    """The tools, once: how they are called."""
    tool_syntax: Literal["json", "spaced_json", "outline"] = "json"
    """How a tool is written: `json`, as in the request; `spaced_json`, its function alone, with
    blanks after `,` and `:`; `outline`, names, types and descriptions a line each, as OpenAI does.
    """
    thinking: int = 0
    """When the model is to think: how hard."""
    efforts: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """The same for efforts where it is another figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How a vendor caches prompt prefixes, and what that saves."""

    ratio: float
    """Price of a cached token, as a fraction of the full price."""
    write: float = 1.0
    """Price of a token written to the cache, as a multiple of the full price."""
    min_tokens: int = 0
    """Shortest prefix that is cached, in tokens."""
    granularity: int = 1
    """Hits are multiples of this many tokens."""
    match_policy: Literal["beginning", "requests", "breakpoints"] = "beginning"
    """Which prefixes of an earlier request can be hit.

    `beginning`: any beginning of it. `requests`: only the whole of it, or what two requests were
    seen to have in common. `breakpoints`: only its beginning up to the last message of the user or
    a tool.
    """
    ttl: float | None = None
    """Seconds for which an unused entry is guaranteed to live; None if undocumented."""
    price: float | None = None
    """Price of a million input tokens at full price."""
    currency: str = "USD"
    source: str = ""
    """Source and date of these figures."""

    def round_to_cached(self, tokens: int) -> int:
        """How many of this many identical tokens the cache serves."""
        return tokens - tokens % self.granularity if tokens >= self.min_tokens else 0

    def tokens_saved(self, cached: int, written: int) -> float:
        """What the cache saved on a request, in tokens at full price."""
        return cached * (1 - self.ratio) - written * (self.write - 1)

    def cost(self, tokens: float) -> float | None:
        """Price of this many tokens at full price; None if unknown."""
        return None if self.price is None else tokens * self.price / 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What is known of a model, from its vendor's documentation."""

    context_window: int
    """Tokens of input and output together."""
    max_output: int
    """Tokens."""
    vocabulary: str = "o200k_base"
    """The encoding whose tokens are counted; see `agent_context._context.tokens`."""
    margin: float = 1.0
    """Safety factor for counts in that encoding."""
    message_overhead: int = 4
    """Tokens that each message costs besides its text."""
    overhead: TemplateOverhead | None = None
    """The same, and that of all else, where the model's template is known."""
    default_reserve: int = 4096
    """Tokens kept free for the answer when `max_tokens` isn't given."""
    thinks: bool = False
    """Whether the model can reason before it answers."""
    sends_reasoning: bool = False
    """Whether stored reasoning goes back to the model, and so costs input."""
    reasoning_needs_tools: bool = False
    """Whether reasoning is dropped from the prompt, at no cost, when a request has no tools."""
    cache: CachePolicy | None = None
    """What is known of its prompt cache, and the price of its input."""
    output_price: float | None = None
    """Price of a million output tokens, in the currency of `cache`; None if unknown."""

    @property
    def input_budget(self) -> int:
        """Input tokens that leave room for the longest answer."""
        return max(0, self.context_window - self.max_output)
