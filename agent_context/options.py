"""How a turn should go: what a caller may choose, and what is known of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from agent_context.errors import InvalidOptions
from agent_context.messages import Message, what_is_wrong
from agent_context.tools import Tool

__all__ = [
    "CacheRule",
    "Effort",
    "ModelFacts",
    "OnAbort",
    "OnBusy",
    "Overhead",
    "SendOptions",
]


OnBusy = Literal["queue", "reject", "interrupt", "steer"]
"""What a send does while another turn runs.

`queue` waits for its own turn, `reject` raises `ConversationBusy`, `interrupt` ends the running
turn, keeps what it had and goes next, `steer` joins the next model call of the conversation
together with whatever else steers.
"""

OnAbort = Literal["keep", "discard"]
"""What becomes of a turn that is cut short.

`keep` stores what had arrived as an interrupted message, without unfinished tool calls; with
`discard` the turn leaves no trace.
"""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class SendOptions(BaseModel):
    """Choices for a turn. What isn't set comes from the conversation's own options.

    Raises `InvalidOptions` for a value out of range or an option that doesn't exist.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True
    )

    model: str | None = None
    context_window: int | None = Field(default=None, gt=0)
    """Tokens of input and output together; None takes the model's own."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Most tokens of output; it is also what is reserved for the answer in the window."""
    auto_compress: bool = True
    """Compress when the request doesn't fit; False raises `ContextFull` instead."""
    soft_limit: float | None = Field(default=None, gt=0, le=1)
    """Share of the window past which compression runs beside the next turn. None: never."""
    instructions: str | None = None
    """Sent as a system message behind the immutable zone, never stored."""
    scratch: str | Message | Sequence[Message] = ()
    """Sent after everything else, never stored. A text is one system message."""
    tools: Sequence[Tool] = ()
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `none`, `required`, a tool's name, or the vendor's own form."""
    thinking: bool | None = None
    effort: Effort | None = None
    response_format: dict[str, Any] | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, ge=0, le=1)
    stop: str | Sequence[str] = ()
    seed: int | None = None
    on_busy: OnBusy = "queue"
    on_abort: OnAbort = "keep"
    commit: Literal["auto", "manual"] = "auto"
    """`manual`: the turn stores neither its messages nor the answer; the caller does."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds from acceptance to the end of the turn, waiting for other turns included."""
    retries: int = Field(default=2, ge=0)
    """How often a call may be tried again when the failure allows it and nothing was emitted."""
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Top-level fields of the request that only one vendor has; they go out as they are."""

    @model_validator(mode="wrap")
    @classmethod
    def _typed_error(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise InvalidOptions(f"bad options: {what_is_wrong(error)}") from error

    @field_validator("scratch", mode="plain")
    @classmethod
    def _scratch_messages(cls, value: object) -> tuple[Message, ...]:
        if isinstance(value, str):
            return (Message.system(value),) if value else ()
        items = (value,) if isinstance(value, Message) else value
        if isinstance(items, list | tuple):
            items = cast("Sequence[object]", items)
            if all(isinstance(item, Message) for item in items):
                return tuple(cast("Sequence[Message]", items))
        raise ValueError("a text, a Message or a list of them is expected")

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop", "tools", mode="after")
    @classmethod
    def _frozen(cls, value: Sequence[object]) -> tuple[object, ...]:
        return tuple(value)

    def over(self, defaults: SendOptions) -> SendOptions:
        """These options where they were set, `defaults` elsewhere; `extra` is merged."""
        chosen = {name: getattr(self, name) for name in self.model_fields_set}
        if "extra" in chosen:
            chosen["extra"] = {**defaults.extra, **self.extra}
        return defaults.model_copy(update=chosen) if chosen else defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
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
class CacheRule:
    """How a vendor caches the beginnings of prompts, and what that is worth."""

    ratio: float
    """What a token from the cache costs, in tokens at full price."""
    write: float = 1.0
    """What a token costs that is written to the cache."""
    least: int = 0
    """Tokens that a beginning must have."""
    step: int = 1
    """A hit is a multiple of so many tokens."""
    matches: Literal["beginning", "requests", "breakpoints"] = "beginning"
    """What of an earlier request is found again.

    `beginning`: any beginning of it. `requests`: only the whole of it, or what two requests were
    seen to have in common. `breakpoints`: only its beginning up to the last message of the user or
    a tool.
    """
    lifetime: float | None = None
    """Seconds without use that an entry survives for sure. None: nobody says."""
    price: float | None = None
    """Of a million tokens at full price."""
    currency: str = "USD"
    source: str = ""
    """Who says so, and when."""

    def served(self, tokens: int) -> int:
        """How many of so many equal tokens come from the cache."""
        return tokens - tokens % self.step if tokens >= self.least else 0

    def saved(self, cached: int, written: int) -> float:
        """Tokens at full price that a request cost less than it would have without a cache."""
        return cached * (1 - self.ratio) - written * (self.write - 1)

    def money(self, tokens: float) -> float | None:
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
    """The encoding whose tokens are counted; see `agent_context.tokens`."""
    margin: float = 1.0
    """What a count in that encoding is multiplied by to be on the safe side for this model."""
    message_overhead: int = 4
    """Tokens that each message costs beside its text."""
    overhead: Overhead | None = None
    """The same, and that of all else, where the model's template is known."""
    default_reserve: int = 4096
    """Tokens kept free for the answer when `max_tokens` isn't given."""
    thinks: bool = False
    """Whether the model can reason before it answers."""
    sends_reasoning: bool = False
    """Whether stored reasoning goes back to the model, and so costs input."""
    reasoning_needs_tools: bool = False
    """Whether it is left out of the prompt, and costs nothing, in a request without tools."""
    cache: CacheRule | None = None
    """What is known of its prompt cache."""

    @property
    def input_budget(self) -> int:
        """Tokens of input that leave room for the longest answer."""
        return max(0, self.context_window - self.max_output)
