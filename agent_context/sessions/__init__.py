"""Sessions: what the runs of one conversation share, and where whole sessions are kept."""

from agent_context.sessions.files import FileSessionStore
from agent_context.sessions.session import AgentSession
from agent_context.sessions.store import ScopedSessionStore, SessionStore
from agent_context.sessions.stored import MemorySessionStore, StoreSessionStore

__all__ = [
    "AgentSession",
    "FileSessionStore",
    "MemorySessionStore",
    "ScopedSessionStore",
    "SessionStore",
    "StoreSessionStore",
]
