"""What a model is told about a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from agent_context.errors import InvalidOptions
from agent_context.messages import what_is_wrong

__all__ = ["Tool"]


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
    def _typed_error(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, Mapping):
            fields = cast("Mapping[str, Any]", data)
            data = fields.get("function", fields)
        try:
            return handler(data)
        except ValidationError as error:
            raise InvalidOptions(f"not a tool: {what_is_wrong(error)}") from error
