"""The conversations of a service: each tenant sees its own, and nobody else's."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agent_context.errors import ConversationDeleted
from agent_context.host import ConversationConfig, Host
from agent_context.messages import Message
from agent_context.protocol import Extend
from agent_context.ref import ContextRef
from agent_context.service.auth import DEFAULT_TENANT, Principal
from agent_context.service.catalog import Catalog, to_backend
from agent_context.service.config import ServiceConfig
from agent_context.service.errors import Problem, ServiceError, invalid, not_found
from agent_context.stores.store import ConversationInfo

__all__ = ["OWN", "Conversations", "is_id", "make_id", "user_metadata"]

_TENANTS: Final = "tenant/"
_BEHIND_TENANTS: Final = "tenant0"  # the first id that doesn't begin so
_ID: Final = re.compile(r"[^\s/?#%\\\x00-\x1f\x7f]{1,200}")
OWN: Final = "context_actor"
"""In a conversation's metadata: what the service itself notes there."""


class Conversations:
    """Finds and makes conversations, by the ids that tenants use.

    In the store an id begins with its tenant, so that nobody can even name what is another's. The
    default tenant has the store's plain ids, those that programs have made too.
    """

    def __init__(self, config: ServiceConfig, catalog: Catalog) -> None:
        self.backend = to_backend(catalog)
        """Answers for every name of the catalog."""
        self._compression = config.compression
        self._first: dict[str, tuple[Message, ...]] = {}
        """What conversations begin with that are being made."""
        self.host = Host(config.store, self._configure, live=config.bounds.live)

    def key_of(self, principal: Principal, conversation_id: str) -> str:
        """The id in the store. Raises `ServiceError` for what is no id."""
        if not is_id(conversation_id):
            text = "an id has 1 to 200 characters, none of them a space, /, ?, #, % or \\"
            raise invalid(f"id: {text}", param="id")
        return _prefix(principal) + conversation_id

    def id_of(self, key: str) -> str:
        """The id that its tenant uses."""
        return key.split("/", 2)[2] if key.startswith(_TENANTS) else key

    async def get(self, principal: Principal, conversation_id: str) -> ContextRef:
        """One that there is. Raises `UnknownConversation`."""
        await self.info(principal, conversation_id)
        key = self.key_of(principal, conversation_id)
        return await self.host.aget(key, create=False)

    async def get_or_create(self, principal: Principal, conversation_id: str) -> ContextRef:
        """One, whether there was one or not. Raises `ConversationDeleted`."""
        return await self.host.aget(self.key_of(principal, conversation_id))

    async def info(self, principal: Principal, conversation_id: str) -> ConversationInfo:
        """What is known of one. Raises `ServiceError` (404)."""
        found = await self.find(principal, conversation_id)
        if found is None:
            raise not_found(
                f"there is no conversation {conversation_id!r}", code="conversation_not_found"
            )
        return found

    async def find(self, principal: Principal, conversation_id: str) -> ConversationInfo | None:
        """What is known of one, if there is one."""
        key = self.key_of(principal, conversation_id)
        return await asyncio.to_thread(self.host.info, key)

    async def create(
        self,
        principal: Principal,
        conversation_id: str,
        *,
        immutable: Sequence[Message] = (),
        messages: Sequence[Message] = (),
        metadata: Mapping[str, Any] | None = None,
        own: Mapping[str, Any] | None = None,
    ) -> ContextRef:
        """A new one, which begins with these messages. Raises `ServiceError` (409) if it is there.

        `own` is what the service notes in its metadata.
        """
        key = self.key_of(principal, conversation_id)
        if key in self._first or await asyncio.to_thread(self.host.info, key) is not None:
            raise _conflict(f"there is a conversation {conversation_id!r} already")
        self._first[key] = tuple(immutable)
        try:
            ref = await self.host.aget(key)
        except ConversationDeleted as error:
            text = f"the conversation {conversation_id!r} was deleted: take another id"
            raise _conflict(text) from error
        finally:
            del self._first[key]
        if messages:
            await ref.aask(Extend(messages))
        noted = {**(metadata or {}), **({OWN: dict(own)} if own else {})}
        if noted:
            await asyncio.to_thread(self.host.set_metadata, key, noted)
        return ref

    async def set_metadata(
        self, principal: Principal, conversation_id: str, metadata: Mapping[str, Any]
    ) -> ConversationInfo:
        """Replace the user's metadata, and leave the service's own."""
        info = await self.info(principal, conversation_id)
        own = {OWN: info.metadata[OWN]} if OWN in info.metadata else {}
        await asyncio.to_thread(self.host.set_metadata, info.id, {**metadata, **own})
        return await self.info(principal, conversation_id)

    async def note(self, key: str, **own: object) -> None:
        """Add to what the service notes of a conversation."""
        info = await asyncio.to_thread(self.host.info, key)
        if info is not None:
            noted = {**info.metadata, OWN: {**info.metadata.get(OWN, {}), **own}}
            await asyncio.to_thread(self.host.set_metadata, key, noted)

    async def delete(self, principal: Principal, conversation_id: str) -> None:
        """End it for good. Raises `ServiceError` (404)."""
        info = await self.info(principal, conversation_id)
        await asyncio.to_thread(self.host.delete, info.id)

    async def page(
        self, principal: Principal, *, after: str = "", limit: int = 100
    ) -> Sequence[ConversationInfo]:
        """The tenant's own, by id."""
        start = _prefix(principal) + after
        return await asyncio.to_thread(self._page, principal, start, limit)

    def is_own(self, principal: Principal, key: str) -> bool:
        """Whether this conversation of the store is the tenant's."""
        prefix = _prefix(principal)
        return key.startswith(prefix) if prefix else not key.startswith(_TENANTS)

    def _page(self, principal: Principal, after: str, limit: int) -> list[ConversationInfo]:
        found: list[ConversationInfo] = []
        while len(found) < limit:
            page = self.host.conversations(after=after, limit=limit)
            if not page:
                break
            found += [info for info in page if self.is_own(principal, info.id)]
            after = page[-1].id
            if self.is_own(principal, after):
                continue
            if _prefix(principal):
                break
            after = _BEHIND_TENANTS
        return found[:limit]

    def _configure(self, key: str) -> ConversationConfig:
        immutable = self._first.get(key, ())
        return ConversationConfig(self.backend, immutable=immutable, compression=self._compression)


def user_metadata(info: ConversationInfo) -> dict[str, Any]:
    """The metadata without what the service notes there."""
    return {name: value for name, value in info.metadata.items() if name != OWN}


def is_id(text: str) -> bool:
    """Whether a conversation can have this id."""
    return _ID.fullmatch(text) is not None


def make_id(prefix: str = "conv", key: str | None = None) -> str:
    """A new id; the same one for the same idempotency key."""
    if key is None:
        return f"{prefix}_{secrets.token_hex(16)}"
    return f"{prefix}_{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _prefix(principal: Principal) -> str:
    return "" if principal.tenant == DEFAULT_TENANT else f"{_TENANTS}{principal.tenant}/"


def _conflict(text: str) -> ServiceError:
    return ServiceError(Problem(status=409, message=text, code="conversation_exists", param="id"))
