"""What a caller may choose for a turn."""

from __future__ import annotations

from collections.abc import Sequence
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
from agent_context.messages import Message, describe_validation_error
from agent_context.tools import Tool

__all__ = [
    "Effort",
    "OnAbort",
    "OnBusy",
    "SendOptions",
    "release_tool_choice",
]


OnBusy = Literal["queue", "reject", "interrupt", "steer"]
"""What a send does while another turn runs.

`queue` waits for its own turn, `reject` raises `ConversationBusy`, `interrupt` ends the running
turn, keeps what it had and goes next, `steer` joins the next model call of the conversation
together with whatever else steers.
"""

OnAbort = Literal["keep", "discard"]
"""What happens to a turn that is cut short.

`keep` stores what had arrived as an interrupted message, without unfinished tool calls;
`discard` stores nothing.
"""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class SendOptions(BaseModel):
    """Options of a turn. What isn't set comes from the conversation's own options.

    Raises `InvalidOptions` for a value out of range or an option that doesn't exist.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True
    )

    model: str | None = None
    context_window: int | None = Field(default=None, gt=0)
    """Tokens of input and output together; None uses the model's own."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum output tokens; this many are reserved in the window."""
    auto_compress: bool = True
    """Compress when the request doesn't fit the window; False raises `ContextFull` instead."""
    soft_limit: float | None = Field(default=None, gt=0, le=1)
    """Share of the window (0 to 1) past which compression runs between turns. None: never."""
    instructions: str | None = None
    """Sent as a system message behind the immutable zone, never stored."""
    scratch: str | Message | Sequence[Message] = ()
    """Sent behind everything else, and never stored. A text becomes one system message."""
    tools: Sequence[Tool] = ()
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `none`, `required`, a tool's name, or the vendor's own form.

    What forces a call forces the first answer of a turn, and none after its tools have run.
    """
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
    """`manual`: the turn stores nothing; the caller appends what it wants."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds from acceptance to the end of the turn, waiting included."""
    retries: int = Field(default=2, ge=0)
    """How often a failed call is tried again, if its error allows that and nothing was streamed."""
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Top-level fields of the request body that only one vendor has; sent as they are."""

    @model_validator(mode="wrap")
    @classmethod
    def _raise_invalid_options(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            raise InvalidOptions(f"bad options: {describe_validation_error(error)}") from error

    @field_validator("scratch", mode="plain")
    @classmethod
    def _parse_scratch(cls, value: object) -> tuple[Message, ...]:
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
    def _listify_stop(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("stop", "tools", mode="after")
    @classmethod
    def _freeze(cls, value: Sequence[object]) -> tuple[object, ...]:
        return tuple(value)

    def merged_over(self, defaults: SendOptions) -> SendOptions:
        """These options where they are set, and `defaults` elsewhere; `extra` is merged."""
        chosen = {name: getattr(self, name) for name in self.model_fields_set}
        if "extra" in chosen:
            chosen["extra"] = {**defaults.extra, **self.extra}
        return defaults.model_copy(update=chosen) if chosen else defaults


def release_tool_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """The tool choice after a turn's tools have run: the same, but forcing no call."""
    if isinstance(choice, str):
        return choice if choice in {"auto", "none"} else None
    if choice is None or choice.get("type") in {"auto", "none"}:
        return choice
    if choice.get("type") != "allowed_tools":
        return None
    nested = choice.get("allowed_tools")
    if isinstance(nested, dict):
        return {**choice, "allowed_tools": {**cast("dict[str, Any]", nested), "mode": "auto"}}
    return {**choice, "mode": "auto"}
