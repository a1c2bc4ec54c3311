"""Long tool results, kept beside their conversation."""

from __future__ import annotations

from agent_context.stores.access import Access
from agent_context.stores.store import Store

__all__ = ["StoredResults"]

_PREFIX = "result/"


class StoredResults:
    """A `ResultKeeper`: what is kept lives as long as the conversation, whoever owns it.

    The conversation must be in the store already.
    """

    def __init__(self, store: Store, conversation_id: str) -> None:
        self._access = Access.of(store)
        self._store = store
        self._conversation_id = conversation_id

    async def keep(self, id: str, text: str) -> None:
        """Attach the text to the conversation. Raises `StoreError`."""
        payload = text.encode("utf-8")
        await self._access.read(self._store.attach, self._conversation_id, _PREFIX + id, payload)

    async def fetch(self, id: str) -> str | None:
        """The text, from this process or an earlier one. Raises `StoreError`."""
        found = await self._access.read(self._store.attached, self._conversation_id, _PREFIX + id)
        return None if found is None else found.decode("utf-8")
