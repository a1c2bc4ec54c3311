"""The actor that owns a conversation, and what it is made of. Private: free to change."""

from agent_context._actor.actor import AgentContext

__all__ = ["AgentContext"]
