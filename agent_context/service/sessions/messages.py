"""The messages of a session, by zone, and what may be done to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Response

from agent_context._context.zones import Zone, Zones
from agent_context.errors import VersionConflict
from agent_context.messages import Message
from agent_context.protocol import (
    Clear,
    Command,
    Conditional,
    Extend,
    Remove,
    Restore,
    Rewind,
    Update,
    Version,
)
from agent_context.ref import ContextRef, read_zones
from agent_context.service.errors import invalid, not_found
from agent_context.service.responses import Json
from agent_context.service.service import IdempotencyKey, IfMatch, Limit, Reader, Running, Writer
from agent_context.service.sessions.shapes import (
    AppendBody,
    ChatMessage,
    RewindBody,
    index_after,
    message_json,
    parse,
    parse_version,
    record_json,
)

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["messages"])

R = TypeVar("R")
ZoneName = Literal["all", "immutable", "compressed", "incremental"]
_ATTEMPTS = 5


@router.get("/messages")
async def list_messages(
    session_id: str,
    service: Running,
    who: Reader,
    zone: ZoneName = "all",
    after: str = "",
    limit: Limit = 100,
    order: Annotated[Literal["asc", "desc"], Query()] = "asc",
) -> Response:
    """Messages with their zones; `after` is the id of the last one of the page before."""
    ref = await service.conversations.get(who, session_id)
    version, zones = await ref.aask(Version()), await read_zones(ref)
    wanted = [each for each in Zone if zone in {"all", each.value}]
    records = [(each, record) for each in wanted for record in zones.zone(each)]
    if order == "desc":
        records.reverse()
    start = 0
    if after:
        places = [index for index, (_, record) in enumerate(records) if record.id == after]
        if not places:
            raise invalid(f"after: there is no message {after!r}", param="after")
        start = places[0] + 1
    page = records[start : start + limit]
    following = page[-1][1].id if start + limit < len(records) else None
    data = [record_json(record, zone=each.value) for each, record in page]
    body = {"object": "list", "data": data, "next": following, "version": version}
    return Json(body, headers={"ETag": f'"{version}"'})


@router.post("/messages", status_code=201)
async def append_messages(
    session_id: str,
    body: AppendBody,
    service: Running,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    """Add messages at the end, all or none, without asking the model."""
    ref = await service.conversations.get(who, session_id)
    service.check_key(ref, idempotency_key, body.messages)
    ids = await _do(ref, Extend(parse(body.messages), key=idempotency_key), if_match)
    return await _changed(ref, {"ids": ids}, status=201)


@router.put("/messages/{message_id}")
async def replace_message(
    session_id: str,
    message_id: str,
    body: ChatMessage,
    service: Running,
    who: Writer,
    if_match: IfMatch = None,
) -> Response:
    """Replace a message of the incremental zone; its id stays."""
    ref = await service.conversations.get(who, session_id)
    message = Message.from_dict(body)
    old = await _edit(ref, message_id, lambda index: Update(index, message), if_match)
    return await _changed(ref, {"replaced": message_json(old)})


@router.delete("/messages/{message_id}")
async def remove_message(
    session_id: str, message_id: str, service: Running, who: Writer, if_match: IfMatch = None
) -> Response:
    """Remove a message of the incremental zone."""
    ref = await service.conversations.get(who, session_id)
    old = await _edit(ref, message_id, Remove, if_match)
    return await _changed(ref, {"removed": [message_json(old)]})


@router.delete("/messages")
async def clear_messages(
    session_id: str, service: Running, who: Writer, if_match: IfMatch = None
) -> Response:
    """Empty the incremental zone."""
    ref = await service.conversations.get(who, session_id)
    removed = await _do(ref, Clear(), if_match)
    return await _changed(ref, {"removed": [message_json(each) for each in removed]})


@router.post("/rewind")
async def rewind_session(
    session_id: str, body: RewindBody, service: Running, who: Writer, if_match: IfMatch = None
) -> Response:
    """Cut the incremental zone back; `restore` undoes it."""
    ref = await service.conversations.get(who, session_id)
    if (body.to is None) == (body.message_id is None):
        raise invalid("give to or message_id, one of them", param="to")
    to = body.to
    if to is None:
        to = index_after(await read_zones(ref), body.message_id or "")
    removed = await _do(ref, Rewind(to), if_match)
    return await _changed(ref, {"removed": [message_json(each) for each in removed]})


@router.post("/restore")
async def restore_session(
    session_id: str, service: Running, who: Writer, if_match: IfMatch = None
) -> Response:
    """Undo the last rewind."""
    ref = await service.conversations.get(who, session_id)
    back = await _do(ref, Restore(), if_match)
    return await _changed(ref, {"restored": [message_json(each) for each in back]})


async def _do(ref: ContextRef, command: Command[R], if_match: str | None) -> R:
    version = parse_version(if_match)
    return await ref.aask(command if version is None else Conditional(command, version))


async def _edit(
    ref: ContextRef,
    message_id: str,
    make: Callable[[int], Command[Message]],
    if_match: str | None,
) -> Message:
    """Edit the message with this id, wherever it stands by the time that the edit comes to it."""
    expected = parse_version(if_match)
    for attempt in range(_ATTEMPTS):
        version, zones = await ref.aask(Version()), await read_zones(ref)
        command = Conditional(make(_index(zones, message_id)), expected or version)
        try:
            return await ref.aask(command)
        except VersionConflict:
            if expected is not None or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def _index(zones: Zones, message_id: str) -> int:
    for index, record in enumerate(zones.incremental):
        if record.id == message_id:
            return index
    raise not_found(
        f"there is no message {message_id!r} in the incremental zone", code="message_not_found"
    )


async def _changed(ref: ContextRef, body: dict[str, Any], *, status: int = 200) -> Response:
    version = await ref.aask(Version())
    return Json({**body, "version": version}, status_code=status, headers={"ETag": f'"{version}"'})
