"""What the APIs of vendors have in common, as options of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, Field

from agent_context.errors import InvalidOptions
from agent_context.service.errors import invalid
from agent_context.tools import Tool

__all__ = ["Sampling", "option_fields", "parse_tools"]


class Sampling(BaseModel):
    """How tokens are chosen."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)


def option_fields(**given: object) -> dict[str, Any]:
    """Those that were given, so that others come from the conversation; a choice in one form."""
    fields = {name: value for name, value in given.items() if value is not None}
    if isinstance(choice := fields.get("tool_choice"), Mapping):
        fields["tool_choice"] = _choice(cast("Mapping[str, Any]", choice))
    if not fields.get("tools"):
        fields.pop("tool_choice", None)
    if fields.get("response_format") == {"type": "text"}:
        del fields["response_format"]
    return fields


def _choice(raw: Mapping[str, Any]) -> object:
    match raw:
        case {"type": "function", "function": {"name": str(name)}} | {
            "type": "function",
            "name": str(name),
        }:
            return name
        case {"type": "any"}:
            return "required"
        case {"type": "tool", "name": str(name)}:
            return name
        case {"type": str(kind)} if kind in {"auto", "none"}:
            return kind
        case {"type": "allowed_tools", "mode": str(mode)}:
            return mode
        case _:
            return raw


def parse_tools(raw: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """The functions among the tools. Those that a vendor runs itself can't be offered here."""
    tools: list[Tool] = []
    for number, fields in enumerate(raw or ()):
        if fields.get("type", "function") != "function":
            continue
        function = fields.get("function", fields)
        kept = {
            name: function[name]
            for name in ("name", "description", "parameters", "strict")
            if function.get(name) is not None
        }
        try:
            tools.append(Tool.model_validate(kept))
        except InvalidOptions as error:
            raise invalid(f"tools.{number}: {error}", param=f"tools.{number}") from error
    return tuple(tools)
