"""Agents: runs of a conversation with providers around them and tools inside."""

from agent_context.agent.agent import Agent
from agent_context.agent.updates import AgentUpdate, RunStream

__all__ = ["Agent", "AgentUpdate", "RunStream"]
