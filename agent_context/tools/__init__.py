"""Tools: what a model is told of them, how they are made, and how its calls are run."""

from agent_context.tools.approval import (
    Always,
    ApprovalCallback,
    ApprovalDecision,
    ApprovalDecisions,
)
from agent_context.tools.call import RepeatedFailures
from agent_context.tools.function import FunctionTool, tool
from agent_context.tools.merge import MergedTools, SkippedTool, ToolConflict, ToolSource, merge
from agent_context.tools.result_store import InMemoryToolResults, ToolResultStore
from agent_context.tools.tool import ApprovalPolicy, CallableTool, RunContext, Tool, ToolContext
from agent_context.tools.toolbox import Limits, Toolbox, ToolRunResult

__all__ = [
    "Always",
    "ApprovalCallback",
    "ApprovalDecision",
    "ApprovalDecisions",
    "ApprovalPolicy",
    "CallableTool",
    "FunctionTool",
    "InMemoryToolResults",
    "Limits",
    "MergedTools",
    "RepeatedFailures",
    "RunContext",
    "SkippedTool",
    "Tool",
    "ToolConflict",
    "ToolContext",
    "ToolResultStore",
    "ToolRunResult",
    "ToolSource",
    "Toolbox",
    "merge",
    "tool",
]
