"""The sessions of stores that somebody holds: one object for each conversation.

Two sessions of one conversation would take it from each other, and their runs would overlap.
"""

from __future__ import annotations

from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from agent_context.sessions.session import AgentSession
from agent_context.stores.store import Store

__all__ = ["known_session"]

_lock: Final = Lock()
_known: Final[WeakKeyDictionary[Store, WeakValueDictionary[str, AgentSession]]] = (
    WeakKeyDictionary()
)


def known_session(store: Store, session_id: str) -> AgentSession:
    """The session with this id that somebody holds, or a new one."""
    with _lock:
        sessions = _known.setdefault(store, WeakValueDictionary())
        session = sessions.get(session_id)
        if session is None:
            session = sessions[session_id] = AgentSession(session_id)
        return session
