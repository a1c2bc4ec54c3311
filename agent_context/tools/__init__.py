"""Tools: what a model is told of them, how they are made, and how its calls are run."""

from agent_context.tools.approval import Approve, Decision, Decisions
from agent_context.tools.base import Approval, CallableTool, ToolContext
from agent_context.tools.execution import Limits, Outcome, Toolbox
from agent_context.tools.function import FunctionTool, tool
from agent_context.tools.keeping import MemoryResults, ResultKeeper
from agent_context.tools.merging import Merged, Skipped, Source, ToolConflict, merge
from agent_context.tools.repeats import Repeats
from agent_context.tools.spec import Tool

__all__ = [
    "Approval",
    "Approve",
    "CallableTool",
    "Decision",
    "Decisions",
    "FunctionTool",
    "Limits",
    "MemoryResults",
    "Merged",
    "Outcome",
    "Repeats",
    "ResultKeeper",
    "Skipped",
    "Source",
    "Tool",
    "ToolConflict",
    "ToolContext",
    "Toolbox",
    "merge",
    "tool",
]
