"""Sessions: what the runs of one conversation share, and where whole sessions are kept."""

from agent_context.sessions.session import AgentSession

__all__ = ["AgentSession"]
