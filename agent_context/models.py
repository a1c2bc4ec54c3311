"""What is known of a model: its window, how its tokens count, how its prompts are cached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

__all__ = ["ESTIMATED", "CachePolicy", "ModelFacts", "TemplateOverhead"]

ESTIMATED: Final = "estimated"
"""As a model's vocabulary: tokens are estimated from the text, and no vocabulary is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOverhead:
    """Tokens that a model's own template adds to the texts of a request."""

    request: int = 3
    """Once, the beginning of the answer included."""
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
    spaced_json: bool = False
    """Whether a tool is written as its function alone, with blanks after `,` and `:`."""
    thinking: int = 0
    """When the model is to think: how hard."""
    efforts: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """The same for efforts where it is another figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How a vendor caches the beginnings of prompts, and what that is worth."""

    ratio: float
    """What a token from the cache costs, in tokens at full price."""
    write: float = 1.0
    """What a token costs that is written to the cache."""
    min_tokens: int = 0
    """Tokens that a beginning must have."""
    granularity: int = 1
    """A hit is a multiple of so many tokens."""
    match_policy: Literal["beginning", "requests", "breakpoints"] = "beginning"
    """What of an earlier request is found again.

    `beginning`: any beginning of it. `requests`: only the whole of it, or what two requests were
    seen to have in common. `breakpoints`: only its beginning up to the last message of the user or
    a tool.
    """
    ttl: float | None = None
    """Seconds without use that an entry survives for sure. None: nobody says."""
    price: float | None = None
    """Of a million tokens at full price."""
    currency: str = "USD"
    source: str = ""
    """Who says so, and when."""

    def round_to_cached(self, tokens: int) -> int:
        """How many of so many equal tokens come from the cache."""
        return tokens - tokens % self.granularity if tokens >= self.min_tokens else 0

    def tokens_saved(self, cached: int, written: int) -> float:
        """Tokens at full price that a request cost less than it would have without a cache."""
        return cached * (1 - self.ratio) - written * (self.write - 1)

    def cost(self, tokens: float) -> float | None:
        """What so many tokens at full price cost, if the price is known."""
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
    """What a count in that encoding is multiplied by to be on the safe side for this model."""
    message_overhead: int = 4
    """Tokens that each message costs beside its text."""
    overhead: TemplateOverhead | None = None
    """The same, and that of all else, where the model's template is known."""
    default_reserve: int = 4096
    """Tokens kept free for the answer when `max_tokens` isn't given."""
    thinks: bool = False
    """Whether the model can reason before it answers."""
    sends_reasoning: bool = False
    """Whether stored reasoning goes back to the model, and so costs input."""
    reasoning_needs_tools: bool = False
    """Whether it is left out of the prompt, and costs nothing, in a request without tools."""
    cache: CachePolicy | None = None
    """What is known of its prompt cache."""

    @property
    def input_budget(self) -> int:
        """Tokens of input that leave room for the longest answer."""
        return max(0, self.context_window - self.max_output)
