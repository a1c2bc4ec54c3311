"""What a tool is: what the model is told of it, how it is run, and what a running one may ask."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from threading import Event
from typing import Any, ClassVar, Literal, Self, cast

from msgspec import Struct, field
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from agent_context._validation import check_callback
from agent_context.errors import InvalidOptions, ToolError
from agent_context.messages import ToolCall, describe_validation_error
from agent_context.tools.arguments import normalize_arguments

__all__ = ["ApprovalPolicy", "CallableTool", "Tool", "ToolContext"]

logger = logging.getLogger(__name__)


class Tool(BaseModel):
    """A function that the model may call. Also built from the chat-completions form."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Whether the vendor should hold the model to the schema; None leaves it to the vendor."""

    @model_validator(mode="wrap")
    @classmethod
    def _raise_invalid_tool(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, Mapping):
            fields = cast("Mapping[str, Any]", data)
            data = fields.get("function", fields)
        try:
            return handler(data)
        except ValidationError as error:
            raise InvalidOptions(f"not a tool: {describe_validation_error(error)}") from error


ApprovalPolicy = Literal["never", "require"] | Callable[[ToolCall], bool]
"""Whether somebody must allow a call before it runs; a function decides by the call.

A function that raises counts as `require`.
"""


class ToolContext(Struct, frozen=True):
    """What a running tool may ask for: a parameter annotated with this type gets it.

    The model is told nothing of that parameter.
    """

    call: ToolCall
    conversation_id: str | None = None
    progress: Callable[[ToolCall, str], object] | None = None
    stopped: Event = field(default_factory=Event)

    @property
    def call_id(self) -> str:
        """The id of the call, as the model's server gave it."""
        return self.call.id

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: its time is up, or the turn has ended.

        A synchronous function can't be interrupted. One that takes long should look at this.
        """
        return self.stopped.is_set()

    def report(self, text: str) -> None:
        """Say how far the work is, to whoever listens."""
        if self.progress is None:
            return
        try:
            self.progress(self.call, text)
        except Exception:
            # It is not the tool's fault.
            logger.exception("A listener to the progress of %s failed", self.call.name)


class CallableTool(Tool, ABC):
    """A tool that a `Toolbox` can run. How it is run is no part of what the model is told."""

    timeout: float | None = Field(default=None, gt=0, exclude=True)
    """Seconds for one call; None takes the toolbox's."""
    approval: ApprovalPolicy = Field(default="never", exclude=True)
    max_result: int | None = Field(default=None, gt=0, exclude=True)
    """Characters of a result that the model gets to read at once; None takes the toolbox's."""

    @field_validator("approval")
    @classmethod
    def _check_approval(cls, approval: ApprovalPolicy) -> ApprovalPolicy:
        return check_callback("approval", approval) if callable(approval) else approval

    @property
    def spec(self) -> Tool:
        """What the model is told, alone."""
        return Tool(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )

    def needs_approval(self, call: ToolCall) -> bool:
        """Whether this call must be allowed before it runs."""
        if not callable(self.approval):
            return self.approval == "require"
        try:
            return bool(self.approval(call))
        except Exception:  # noqa: BLE001 - what can't be judged is not let through
            return True

    @property
    def interruptible(self) -> bool:
        """Whether cancelling a call ends what it does."""
        return True

    def normalize(self, arguments: str) -> str:
        """The arguments as one JSON object: what is judged is what will run.

        Raises `ToolError` if it can be told without running that they don't fit: then nobody is
        asked. A tool whose arguments are no JSON object gets them as the model wrote them.
        """
        try:
            return normalize_arguments(arguments, who=self.name)
        except ToolError:
            return arguments

    @abstractmethod
    async def call(self, arguments: str, context: ToolContext) -> object:
        """Run with the arguments that `normalize` gave.

        Raises `ToolError` with a text for the model. Whatever else is raised is told to it with
        its type.
        """
