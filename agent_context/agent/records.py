"""What is kept beside a session's conversation: its state, long tool results, calls begun."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from agent_context.errors import InvalidOptions, StoreCorrupt
from agent_context.messages import Message
from agent_context.providers.response import Diagnostic
from agent_context.sessions import state_codec
from agent_context.sessions.session import AgentSession
from agent_context.stores.store import Store
from agent_context.stores.writer import StoreExecutor

__all__ = [
    "SessionRecords",
    "get_or_create_session",
]

logger = logging.getLogger(__name__)

_NAME: Final = "session"
_RESULT: Final = "result/"
_BEGUN: Final = "begun"


class SessionRecords:
    """Attachments of a conversation in its store, by the name of what they hold.

    It is a `ToolResultStore` too. All but `save_state` raises `StoreError`.
    """

    def __init__(self, store: Store, session: AgentSession) -> None:
        self._store = store
        self._session = session

    async def keep(self, id: str, text: str) -> None:
        """Keep the full text of a long tool result."""
        await self._put(f"{_RESULT}{id}", text.encode("utf-8", "surrogatepass"))

    async def fetch(self, id: str) -> str | None:
        """The text, or None if there is none of that id."""
        payload = await self._get(f"{_RESULT}{id}")
        return None if payload is None else payload.decode("utf-8", "surrogatepass")

    async def load_state(self) -> None:
        """Give the session the state that was kept; what it has already stays."""
        kept, session = await self._get(_NAME), self._session
        if kept is None:
            return
        try:
            state = _read_state(kept)
        except (ValueError, InvalidOptions) as error:
            raise StoreCorrupt(f"the state of {session!r} can't be read: {error}") from error
        session.stored_state = kept
        session.state = {**state, **session.state}

    async def save_state(self) -> Sequence[Diagnostic]:
        """Keep the session's state, if it has changed; returns what was not kept, and why.

        What one provider can't have kept stays as it was kept before.
        """
        written, problems = _write_state(self._session)
        if written != (self._session.stored_state or b"{}"):
            try:
                await self._put(_NAME, written)
                self._session.stored_state = written
            except Exception as error:  # noqa: BLE001 - of a store: the run has ended, and nobody could catch it
                problems.append(_unkept("store", error))
        for problem in problems:
            logger.warning(
                "of the state of %r: %s: %s", self._session, problem.source, problem.text
            )
        return problems

    async def mark_calls_started(self, answer: Message) -> None:
        """Write down that the calls of an answer that waited are carried out now.

        Whoever finds them without results must know that they may have had an effect.
        """
        await self._put(_BEGUN, answer.id.encode())

    async def calls_started(self, answer: Message) -> bool:
        """Whether somebody has begun to carry out the calls of this answer."""
        return await self._get(_BEGUN) == answer.id.encode()

    async def _put(self, name: str, payload: bytes) -> None:
        access = StoreExecutor.for_store(self._store)
        await access.read(self._store.put_attachment, self._session.session_id, name, payload)

    async def _get(self, name: str) -> bytes | None:
        access = StoreExecutor.for_store(self._store)
        return await access.read(self._store.get_attachment, self._session.session_id, name)


def _unkept(source: str, error: Exception) -> Diagnostic:
    return Diagnostic(source, "save_state", f"it was not kept: {error}", error)


def _write_state(session: AgentSession) -> tuple[bytes, list[Diagnostic]]:
    before: Mapping[str, object] | None = None
    kept: dict[str, object] = {}
    problems: list[Diagnostic] = []
    for name, value in session.state.items():
        try:
            if value not in ({}, None):
                json.dumps(state_codec.encode_state(value, f"state[{name!r}]"))
                kept[name] = value
        except Exception as error:  # noqa: BLE001 - whatever a provider's own values do
            problems.append(_unkept(name, error))
            before = _read_state(session.stored_state) if before is None else before
            kept |= {name: before[name]} if name in before else {}
    return json.dumps(state_codec.encode_state(kept), separators=(",", ":")).encode(), problems


def _read_state(kept: bytes | None) -> Mapping[str, object]:
    # The slower json: a state may hold integers of any size, and text of any kind.
    state: Mapping[str, object] = state_codec.decode_state(json.loads(kept or b"{}"))
    return state


_lock: Final = Lock()
_known: Final[WeakKeyDictionary[Store, WeakValueDictionary[str, AgentSession]]] = (
    WeakKeyDictionary()
)


def get_or_create_session(store: Store, session_id: str) -> AgentSession:
    """The session with this id that somebody holds, or a new one."""
    with _lock:
        sessions = _known.setdefault(store, WeakValueDictionary())
        session = sessions.get(session_id)
        if session is None:
            session = sessions[session_id] = AgentSession(session_id)
        return session
