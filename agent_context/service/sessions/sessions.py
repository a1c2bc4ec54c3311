"""Sessions: made, listed, searched, described, forked, exported, deleted."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from agent_context._context.zones import Zone
from agent_context.imports import ImportResult, read
from agent_context.messages import Message
from agent_context.protocol import Fork, FromJsonl, SearchHistory, ToJsonl, Version
from agent_context.ref import read_zones
from agent_context.service.auth import Principal
from agent_context.service.conversations import make_id
from agent_context.service.responses import Json
from agent_context.service.service import IdempotencyKey, Limit, Reader, Running, Service, Writer
from agent_context.service.sessions.shapes import (
    CreateBody,
    ForkBody,
    MetadataBody,
    index_after,
    parse,
    session_json,
    to_json,
)

__all__ = ["router"]

router = APIRouter(tags=["sessions"])


@router.post("/v1/sessions", status_code=201)
async def create_session(
    body: CreateBody, service: Running, who: Writer, idempotency_key: IdempotencyKey = None
) -> Response:
    """Make a session. With the same `Idempotency-Key` the same one is given again."""
    conversations = service.conversations
    key = None if idempotency_key is None else f"{who.tenant}\n{idempotency_key}"
    name = body.id or make_id("sess", key)
    if body.id is None and key is not None and await conversations.find(who, name):
        return await _describe(service, who, name, status=200)
    await conversations.create(
        who,
        name,
        immutable=() if body.system is None else (Message.system(body.system),),
        messages=parse(body.messages),
        metadata=body.metadata,
    )
    return await _describe(service, who, name, status=201)


@router.get("/v1/sessions")
async def list_sessions(
    service: Running, who: Reader, after: str = "", limit: Limit = 100
) -> Response:
    """Sessions by id. `next` is where the following page starts; null on the last one."""
    conversations = service.conversations
    found = await conversations.page(who, after=after, limit=limit + 1)
    page = found[:limit]
    following = conversations.id_of(page[-1].id) if len(found) > limit else None
    data = [session_json(conversations, info) for info in page]
    return Json({"object": "list", "data": data, "next": following})


@router.get("/v1/search")
async def search_sessions(
    q: str, service: Running, who: Reader, after: str = "", limit: Limit = 20
) -> Response:
    """Messages of all sessions that hold the words of `q`, session by session.

    A page looks into 200 sessions; `next` is where the following one starts.
    """
    conversations = service.conversations
    found: list[dict[str, Any]] = []
    sessions = await conversations.page(who, after=after, limit=200)
    following = None
    for info in sessions:
        ref = await service.host.aget(info.id, create=False)
        entries = await ref.aask(SearchHistory(q, limit=limit - len(found)))
        found += [{"session": conversations.id_of(info.id), **to_json(entry)} for entry in entries]
        if len(found) >= limit:
            following = conversations.id_of(info.id)
            break
    if following is None and len(sessions) == 200:
        following = conversations.id_of(sessions[-1].id)
    return Json({"object": "list", "data": found, "next": following})


@router.get("/v1/sessions/{session_id}")
async def get_session(session_id: str, service: Running, who: Reader) -> Response:
    """A session, its zones and its turns."""
    return await _describe(service, who, session_id)


@router.post("/v1/sessions/{session_id}")
async def update_session(
    session_id: str, body: MetadataBody, service: Running, who: Writer
) -> Response:
    """Replace the metadata."""
    await service.conversations.set_metadata(who, session_id, body.metadata)
    return await _describe(service, who, session_id)


@router.delete("/v1/sessions/{session_id}")
async def delete_session(session_id: str, service: Running, who: Writer) -> Response:
    """End a session for good: its id is not given out again."""
    await service.conversations.delete(who, session_id)
    return Json({"id": session_id, "object": "session", "deleted": True})


@router.post("/v1/sessions/{session_id}/fork", status_code=201)
async def fork_session(session_id: str, body: ForkBody, service: Running, who: Writer) -> Response:
    """A new session that begins as this one is, or was after a message."""
    conversations = service.conversations
    ref = await conversations.get(who, session_id)
    at = body.at
    if body.message_id is not None:
        at = index_after(await read_zones(ref), body.message_id)
    name = body.id or make_id("sess")
    fork = await ref.aask(Fork(at, conversations.key_of(who, name)))
    return await _describe(service, who, conversations.id_of(fork.id), status=201)


@router.get("/v1/sessions/{session_id}/export.jsonl")
async def export_session(
    session_id: str,
    service: Running,
    who: Reader,
    zones: Annotated[list[Zone] | None, Query()] = None,
) -> Response:
    """The zones as lines of JSON, which an import reads."""
    ref = await service.conversations.get(who, session_id)
    text = await ref.aask(ToJsonl(tuple(zones or Zone)))
    return Response(text, media_type="application/jsonl")


@router.post("/v1/sessions/{session_id}/import")
async def import_into_session(
    session_id: str,
    request: Request,
    service: Running,
    who: Writer,
    mode: Annotated[str, Query(pattern="^(replace|append)$")] = "append",
) -> Response:
    """Read lines of messages, all or none of them."""
    ref = await service.conversations.get(who, session_id)
    text = (await request.body()).decode("utf-8", "replace")
    count = await ref.aask(FromJsonl(text, "replace" if mode == "replace" else "append"))
    return Json({"imported": count, "version": await ref.aask(Version())})


@router.post("/v1/sessions:import", status_code=201)
async def import_sessions(request: Request, service: Running, who: Writer) -> Response:
    """Make sessions of a file: lines of messages, or an export of another program."""
    found = await asyncio.to_thread(_read_file, await request.body())
    made: list[dict[str, Any]] = []
    for conversation in found.conversations:
        name = make_id("sess")
        metadata = {"title": conversation.title} if conversation.title else {}
        await service.conversations.create(
            who, name, messages=conversation.messages, metadata=metadata
        )
        made.append(
            {"id": name, "title": conversation.title, "messages": len(conversation.messages)}
        )
    rejected = [{"where": each.where, "why": each.why} for each in found.quarantined]
    return Json({"object": "list", "data": made, "rejected": rejected}, status_code=201)


def _read_file(body: bytes) -> ImportResult:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "import"
        path.write_bytes(body)
        return read(path)


async def _describe(
    service: Service, who: Principal, session_id: str, *, status: int = 200
) -> Response:
    info = await service.conversations.info(who, session_id)
    ref = await service.host.aget(info.id, create=False)
    version, zones = await ref.aask(Version()), await read_zones(ref)
    counts = {zone.value: len(zones.zone(zone)) for zone in Zone}
    turns = [turn.id for turn in service.turns.of(info.id) if turn.id]
    fields = session_json(service.conversations, info)
    return Json(
        {**fields, "version": version, "zones": counts, "turns": turns},
        status_code=status,
        headers={"ETag": f'"{version}"'},
    )
