"""What is kept beside a session's conversation: its state, and long tool results."""

from __future__ import annotations

import logging
from typing import Final

import orjson

from agent_context.errors import InvalidOptions, StoreCorrupt, StoreError
from agent_context.sessions import stateful
from agent_context.sessions.session import AgentSession
from agent_context.stores.access import Access
from agent_context.stores.store import Store

__all__ = ["StoreResults", "load_state", "save_state"]

logger = logging.getLogger(__name__)

_NAME: Final = "session"
_RESULT: Final = "result/"


class StoreResults:
    """Keeps the full texts of long tool results beside their conversation."""

    def __init__(self, store: Store, conversation_id: str) -> None:
        self._store = store
        self._id = conversation_id

    async def keep(self, id: str, text: str) -> None:
        """Keep a text. Raises `StoreError`."""
        name, payload = f"{_RESULT}{id}", text.encode("utf-8", "surrogatepass")
        await Access.of(self._store).read(self._store.attach, self._id, name, payload)

    async def fetch(self, id: str) -> str | None:
        """The text, or None if there is none of that id."""
        payload = await Access.of(self._store).read(
            self._store.attached, self._id, f"{_RESULT}{id}"
        )
        return None if payload is None else payload.decode("utf-8", "surrogatepass")


async def load_state(store: Store, session: AgentSession) -> None:
    """Give the session the state that was kept; what it has already stays. Raises `StoreError`."""
    kept = await Access.of(store).read(store.attached, session.session_id, _NAME)
    if kept is None:
        return
    try:
        state = stateful.read(orjson.loads(kept))
    except (orjson.JSONDecodeError, InvalidOptions) as error:
        raise StoreCorrupt(f"the state of {session!r} can't be read: {error}") from error
    session.kept = kept
    session.state = {**state, **session.state}


async def save_state(store: Store, session: AgentSession) -> None:
    """Keep the session's state, if it has changed. What can't be kept is logged."""
    state = {name: value for name, value in session.state.items() if value not in ({}, None)}
    try:
        written = orjson.dumps(stateful.written(state))
        if written == (session.kept or b"{}"):
            return
        await Access.of(store).read(store.attach, session.session_id, _NAME, written)
        session.kept = written
    except (InvalidOptions, StoreError, TypeError) as error:
        logger.warning("the state of %r was not kept: %s", session, error)
