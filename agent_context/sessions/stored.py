"""Whole sessions in a store of conversations: in SQLite, in PostgreSQL, or in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, ParamSpec, TypeVar

from agent_context._sandbox_fs import safe_filename
from agent_context._validation import check_type
from agent_context.errors import OwnedByAnotherProcess
from agent_context.sessions.store import SessionStore
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import ConversationInfo, Store
from agent_context.stores.writer import StoreExecutor

__all__ = ["MemorySessionStore", "StoreSessionStore"]

P = ParamSpec("P")
T = TypeVar("T")

_PREFIX: Final = "session:"
_KEY: Final = "key"
_PAYLOAD: Final = "payload"
_PAGE: Final = 500


class StoreSessionStore(SessionStore):
    """Keeps each session as attachments of an entry of its own in a `Store`.

    Of two processes that save the same session the last one wins. The entries stand among the
    store's conversations, under ids that begin with `session:`.
    """

    def __init__(self, store: Store) -> None:
        """The store is its maker's to close."""
        self._store = check_type("store", store, Store)

    async def put(self, key: str, payload: bytes) -> None:
        await self._run(self._put, key, payload)

    async def get(self, key: str) -> bytes | None:
        return await self._run(self._store.get_attachment, _id(key), _PAYLOAD)

    async def delete(self, session_id: str) -> bool:
        return await self._run(self._delete, session_id)

    async def list(self) -> Sequence[str]:
        """The ids of all sessions, sorted."""
        return await self._run(lambda: sorted(self._keys()))

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await StoreExecutor.for_store(self._store).read(work, *args, **kwargs)

    def _put(self, key: str, payload: bytes) -> None:
        store, place = self._store, _id(key)
        if store.info(place) is None:
            with suppress(OwnedByAnotherProcess):  # which makes the same entry just now
                store.release(place, store.claim(place).epoch)
        store.put_attachment(place, _PAYLOAD, payload)
        store.put_attachment(place, _KEY, key.encode("utf-8", "surrogatepass"))

    def _delete(self, session_id: str) -> bool:
        store, place = self._store, _id(session_id)
        if store.get_attachment(place, _PAYLOAD) is None:
            return False
        # The entry stays, or its id could never be given out again.
        store.put_attachment(place, _KEY, None)
        store.put_attachment(place, _PAYLOAD, None)
        return True

    def _keys(self) -> Iterator[str]:
        for place in self._entries():
            key = self._store.get_attachment(place.id, _KEY)
            if key is not None:
                yield key.decode("utf-8", "surrogatepass")

    def _entries(self) -> Iterator[ConversationInfo]:
        after = _PREFIX
        while page := self._store.conversations(after=after, limit=_PAGE):
            for found in page:
                if not found.id.startswith(_PREFIX):
                    return
                yield found
            after = page[-1].id


class MemorySessionStore(StoreSessionStore):
    """Keeps sessions as long as it lives itself: for tests, and to move them about."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())


def _id(key: str) -> str:
    return _PREFIX + safe_filename(key)
