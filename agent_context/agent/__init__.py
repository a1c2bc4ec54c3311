"""Agents: runs of a conversation with providers around them and tools inside."""

from agent_context.agent.agent import Agent
from agent_context.agent.stream import AgentStream, AgentUpdate, ToolProgress
from agent_context.providers.response import AgentResponse

__all__ = ["Agent", "AgentResponse", "AgentStream", "AgentUpdate", "ToolProgress"]
