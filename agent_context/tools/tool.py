"""What a tool is: what the model is told of it, how it is run, and what a running one may ask."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import orjson
from msgspec import Struct, field
from msgspec.structs import replace
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
from agent_context.messages import Message, ToolCall, Usage, describe_validation_error
from agent_context.tools.arguments import normalize_arguments

if TYPE_CHECKING:
    from agent_context.sessions.session import AgentSession

__all__ = ["ApprovalPolicy", "CallableTool", "RunContext", "Tool", "ToolContext"]

D = TypeVar("D")

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


class RunContext(Struct, Generic[D], frozen=True, kw_only=True):
    """The run that a tool is called in: a parameter annotated with this type gets it.

    `RunContext[Database]` says what `deps` is, to type checkers and when the tool is called.
    """

    deps: D
    """What `Agent.run(deps=…)` was given."""
    session: AgentSession | None = None
    messages: Sequence[Message] = ()
    """What the caller says in this run."""
    usages: Sequence[Usage] = ()

    @property
    def usage(self) -> Usage:
        """What the model calls of the run have cost so far."""
        return Usage.total(self.usages)


class ToolContext(Struct, frozen=True):
    """What a running tool may ask for: a parameter annotated with this type gets it.

    The model is told nothing of that parameter.
    """

    call: ToolCall
    conversation_id: str | None = None
    progress: Callable[[ToolCall, str], object] | None = None
    stopped: Event = field(default_factory=Event)
    run: RunContext[Any] | None = None
    """The run of an agent in which the tool is called."""

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

    def with_arguments(self, **arguments: object) -> Self:
        """The same for a call with these arguments in the place of its own."""
        text = orjson.dumps(arguments).decode()
        return replace(self, call=self.call.model_copy(update={"arguments": text}))

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

    def check_run(self, run: RunContext[Any]) -> None:
        """Raises `InvalidOptions` if the tool can't be called in such a run."""

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
