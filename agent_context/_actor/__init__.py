"""The conversation: an actor that owns one context, and what it is made of."""

from agent_context._actor.actor import AgentContext, ThreadedAgentContext

__all__ = ["AgentContext", "ThreadedAgentContext"]
