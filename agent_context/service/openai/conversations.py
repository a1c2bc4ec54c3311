"""`/v1/conversations`: sessions as OpenAI's clients know them, and their items."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from agent_context.errors import VersionConflict
from agent_context.messages import Message
from agent_context.protocol import Conditional, Extend, Messages, Remove, Version
from agent_context.ref import ContextRef, read_zones
from agent_context.service.conversations import make_id, user_metadata
from agent_context.service.errors import not_found
from agent_context.service.openai.items import message_id_of, parse_items, stored_items
from agent_context.service.openai.paging import ItemOrder, page_items
from agent_context.service.responses import Json
from agent_context.service.service import IdempotencyKey, Reader, Running, Service, Writer
from agent_context.stores.store import ConversationInfo

__all__ = ["router"]

router = APIRouter(prefix="/v1/conversations", tags=["openai"])

Item = dict[str, Any]
Metadata = dict[str, str]
_ATTEMPTS = 5


class ConversationBody(BaseModel):
    items: list[Item] | None = Field(default=None, max_length=20)
    metadata: Metadata | None = Field(default=None, max_length=16)


class UpdateBody(BaseModel):
    metadata: Metadata | None = Field(max_length=16)


class ItemsBody(BaseModel):
    items: list[Item] = Field(min_length=1, max_length=20)


@router.post("")
async def create_conversation(
    service: Running, who: Writer, body: ConversationBody | None = None
) -> Response:
    """A new conversation, which begins with these items."""
    body = body or ConversationBody()
    messages = parse_items(body.items or [], "items")
    name = make_id("conv")
    await service.conversations.create(who, name, messages=messages, metadata=body.metadata)
    return Json(_json(service, await service.conversations.info(who, name)))


@router.get("/{conversation_id}")
async def get_conversation(conversation_id: str, service: Running, who: Reader) -> Response:
    """A conversation, without its items."""
    return Json(_json(service, await service.conversations.info(who, conversation_id)))


@router.post("/{conversation_id}")
async def update_conversation(
    conversation_id: str, body: UpdateBody, service: Running, who: Writer
) -> Response:
    """Replace the metadata."""
    info = await service.conversations.set_metadata(who, conversation_id, body.metadata or {})
    return Json(_json(service, info))


@router.delete("/{conversation_id}")
async def delete_conversation(conversation_id: str, service: Running, who: Writer) -> Response:
    """End a conversation for good, its items too."""
    await service.conversations.delete(who, conversation_id)
    return Json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.get("/{conversation_id}/items")
async def list_items(
    conversation_id: str,
    service: Running,
    who: Reader,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: ItemOrder = "desc",
) -> Response:
    """The items that the conversation holds now, page by page."""
    items = await _items(await service.conversations.get(who, conversation_id))
    return Json(page_items(items, after=after, limit=limit, order=order))


@router.post("/{conversation_id}/items")
async def create_items(
    conversation_id: str,
    body: ItemsBody,
    service: Running,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Add items at the end, all or none."""
    messages = parse_items(body.items, "items")
    ref = await service.conversations.get(who, conversation_id)
    ids = await ref.aask(Extend(messages, key=idempotency_key)) if messages else ()
    added = zip(messages, ids, strict=True)
    items = [
        item
        for message, given in added
        for item in stored_items(message.model_copy(update={"id": given}))
    ]
    return Json(page_items(items, after=None, limit=100, order="asc"))


@router.get("/{conversation_id}/items/{item_id}")
async def get_item(conversation_id: str, item_id: str, service: Running, who: Reader) -> Response:
    """One item."""
    items = await _items(await service.conversations.get(who, conversation_id))
    found = next((item for item in items if item["id"] == item_id), None)
    if found is None:
        raise not_found(f"there is no item {item_id!r}", code="item_not_found")
    return Json(found)


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(
    conversation_id: str, item_id: str, service: Running, who: Writer
) -> Response:
    """Remove the message that an item is, or is a part of."""
    ref = await service.conversations.get(who, conversation_id)
    for attempt in range(_ATTEMPTS):
        version, zones = await ref.aask(Version()), await read_zones(ref)
        wanted = message_id_of(item_id)
        index = next((i for i, each in enumerate(zones.incremental) if each.id == wanted), None)
        if index is None:
            raise not_found(f"there is no item {item_id!r}", code="item_not_found")
        try:
            await ref.aask(Conditional(Remove(index), version))
            break
        except VersionConflict:
            if attempt == _ATTEMPTS - 1:
                raise
    return Json(_json(service, await service.conversations.info(who, conversation_id)))


async def _items(ref: ContextRef) -> list[Item]:
    messages = await ref.aask(Messages())
    return await asyncio.to_thread(_to_items, messages)


def _to_items(messages: tuple[Message, ...]) -> list[Item]:
    return [item for message in messages for item in stored_items(message)]


def _json(service: Service, info: ConversationInfo) -> dict[str, Any]:
    return {
        "id": service.conversations.id_of(info.id),
        "object": "conversation",
        "created_at": int(info.created_at),
        "metadata": user_metadata(info),
    }
