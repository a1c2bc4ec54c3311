"""Where whole sessions are kept: the seam, and what keeps them in memory or for one tenant."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agent_context._context.jsonl import load_zones
from agent_context._context.zones import Zones
from agent_context._validation import check_type
from agent_context.errors import (
    DeadlockError,
    ImportFailed,
    InvalidOptions,
    StoreCorrupt,
    UsageError,
)
from agent_context.sessions.session import AgentSession

__all__ = ["ScopedSessionStore", "SessionStore"]


class SessionStore(ABC):
    """Keeps sessions, each as one value under its id: what was said, and what providers know.

    What is loaded is a session of its own. What becomes of it changes nothing of what is kept,
    until it is saved. Between two saves nothing is: for conversations that outlive a crash give
    the agent a `store`.

    A subclass writes `put`, `get`, `delete` and `list`. Their keys are any text at all.
    """

    async def save(self, session: AgentSession) -> None:
        """Keep a session as it is between two runs, in the place of what was kept of it.

        Waits for its runs so far; later ones wait for the save. Raises `StoreError`,
        `InvalidOptions` for a state that can't be kept, `DeadlockError` inside of a run.
        """
        check_type("session", session, AgentSession)
        if session.is_inside:
            raise DeadlockError(f"a run of {session!r} can't save it, as it goes on: save it later")
        leave = await session.run_lock.acquire()
        try:
            # The slower json: a state may hold integers of any size, and text of any kind.
            payload = json.dumps(await session.snapshot(), separators=(",", ":")).encode()
            await self.put(session.session_id, payload)
        finally:
            leave()

    async def load(self, session_id: str) -> AgentSession | None:
        """The session with this id, if one was saved. Raises `StoreError`.

        What can't be read is put aside, so that the id is free again; `StoreCorrupt` says where.
        """
        payload = await self.get(check_type("session_id", session_id, str))
        if payload is None:
            return None
        try:
            return _session(payload, session_id)
        except (ValueError, UsageError, ImportFailed) as error:
            aside = await self.quarantine(session_id)
            raise StoreCorrupt(f"session {session_id!r} can't be read: {error}; {aside}") from error

    @abstractmethod
    async def put(self, key: str, payload: bytes) -> None:
        """Keep `payload` in the place of what is there, all of it or nothing."""

    @abstractmethod
    async def get(self, key: str) -> bytes | None:
        """What is kept; None if that is nothing."""

    async def quarantine(self, key: str) -> str:
        """Move away what can't be read, and say where it is; here it stays."""
        del key
        return "it is kept as it is"

    @abstractmethod
    async def delete(self, session_id: str) -> bool:
        """Forget a session; False if there is none."""

    @abstractmethod
    async def list(self) -> Sequence[str]:
        """The ids of all sessions, sorted."""


def _session(payload: bytes, session_id: str) -> AgentSession:
    session = AgentSession.from_dict(json.loads(payload))
    if session.session_id != session_id:
        raise InvalidOptions(f"{session.session_id!r} is kept in its place")
    load_zones(
        session.imported_jsonl or "", "replace", Zones(), is_new=True
    )  # or the next run would fail
    return session


class ScopedSessionStore(SessionStore):
    """The sessions of one tenant in a store that several share.

    Nothing that is saved, loaded, deleted or listed here is another tenant's, whatever the ids.
    """

    def __init__(self, inner: SessionStore, tenant: str) -> None:
        self._inner = check_type("inner", inner, SessionStore)
        if not check_type("tenant", tenant, str):
            raise InvalidOptions("tenant: it is empty, which would be nobody's: name one")
        # With its length in front no tenant and id read like another tenant and id.
        self._scope = f"{len(tenant)}:{tenant}/"

    async def put(self, key: str, payload: bytes) -> None:
        await self._inner.put(self._scope + key, payload)

    async def get(self, key: str) -> bytes | None:
        return await self._inner.get(self._scope + key)

    async def quarantine(self, key: str) -> str:
        return await self._inner.quarantine(self._scope + key)

    async def delete(self, session_id: str) -> bool:
        return await self._inner.delete(self._scope + session_id)

    async def list(self) -> Sequence[str]:
        keys = await self._inner.list()
        return [key.removeprefix(self._scope) for key in keys if key.startswith(self._scope)]
