"""Agents: runs of a conversation with providers around them and tools inside."""

from agent_context.agent.agent import Agent
from agent_context.agent.guardrails import input_guardrail, output_guardrail
from agent_context.agent.middleware import Middleware, around_model, around_run, around_tool
from agent_context.agent.run_request import RunRequest
from agent_context.agent.stream import AgentStream, AgentUpdate, ToolProgress
from agent_context.agent.usage_limits import UsageLimits
from agent_context.providers.response import AgentResponse
from agent_context.tools.tool import RunContext

__all__ = [
    "Agent",
    "AgentResponse",
    "AgentStream",
    "AgentUpdate",
    "Middleware",
    "RunContext",
    "RunRequest",
    "ToolProgress",
    "UsageLimits",
    "around_model",
    "around_run",
    "around_tool",
    "input_guardrail",
    "output_guardrail",
]
