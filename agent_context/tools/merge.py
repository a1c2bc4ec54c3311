"""One list of tools from several sources, where a name means one tool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Literal

from msgspec import Struct

from agent_context.errors import InvalidOptions
from agent_context.messages import ToolCall
from agent_context.tools.tool import CallableTool, Tool

__all__ = ["MergedTools", "SkippedTool", "ToolConflict", "ToolSource", "merge"]

logger = logging.getLogger(__name__)

ToolConflict = Literal["skip", "error"]
"""What two tools of one name do: the later is left out, or nothing goes."""


class ToolSource(Struct, frozen=True):
    """Tools, and whose they are."""

    name: str
    tools: Sequence[Tool]


class SkippedTool(Struct, frozen=True):
    """A tool that was left out, because another one has its name."""

    tool: str
    source: str
    kept: str
    """The source of the tool that has the name."""

    def __str__(self) -> str:
        return f"tool {self.tool!r} of {self.source} was left out: {self.kept} has one of that name"


class MergedTools(Struct, frozen=True):
    """The tools of all sources."""

    tools: tuple[Tool, ...]
    skipped: tuple[SkippedTool, ...] = ()


def merge(*sources: ToolSource, conflict: ToolConflict = "skip") -> MergedTools:
    """The tools of all sources in their order; of two with one name the first stays.

    Give the agent's own first. If any tool of a name needs approval, so does the one that stays,
    or else a source could take the need away. The same tool from two sources is no conflict.

    Raises:
        InvalidOptions: two tools have one name, and `conflict` is `error`.
    """
    kept: dict[str, tuple[Tool, str]] = {}
    skipped: list[SkippedTool] = []
    for source in sources:
        for tool in source.tools:
            first, owner = kept.setdefault(tool.name, (tool, source.name))
            if first is tool or first == tool:
                continue
            kept[tool.name] = (_as_careful(first, tool), owner)
            skipped.append(SkippedTool(tool.name, source.name, owner))
    _report(skipped, conflict)
    return MergedTools(tuple(tool for tool, _ in kept.values()), tuple(skipped))


def _report(skipped: Sequence[SkippedTool], conflict: ToolConflict) -> None:
    if skipped and conflict == "error":
        names = ", ".join(f"{item.tool!r} of {item.kept} and {item.source}" for item in skipped)
        raise InvalidOptions(f"tools of one name: {names}; rename one, or leave it out")
    for item in skipped:
        logger.warning("%s", item)


def _as_careful(kept: Tool, other: Tool) -> Tool:
    """The kept tool, with the need for approval that the other has."""
    if not isinstance(kept, CallableTool) or not isinstance(other, CallableTool):
        return kept
    if other.approval == "never" or kept.approval == "require":
        return kept
    return kept.model_copy(update={"approval": partial(_either, kept, other)})


def _either(kept: CallableTool, other: CallableTool, call: ToolCall) -> bool:
    return kept.needs_approval(call) or other.needs_approval(call)
