"""All that was ever said in a session, and what happens in it, as streams that resume."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from operator import attrgetter
from typing import Annotated

from fastapi import APIRouter, Header, Response

from agent_context.errors import ConversationClosed
from agent_context.host import FeedChange
from agent_context.protocol import History, SearchHistory
from agent_context.service.auth import Principal
from agent_context.service.changes import ALL
from agent_context.service.responses import Json
from agent_context.service.service import Limit, Reader, Running, Service
from agent_context.service.sessions.shapes import to_json
from agent_context.service.sse import PING, event_frame

__all__ = ["router"]

router = APIRouter(tags=["history"])

LastEventId = Annotated[int | None, Header(ge=0)]


@router.get("/v1/sessions/{session_id}/history")
async def page_history(
    session_id: str, service: Running, who: Reader, after: str = "", limit: Limit = 100
) -> Response:
    """Every message that was ever added, oldest first; `after` is the `next` of a page."""
    ref = await service.conversations.get(who, session_id)
    page = await ref.aask(History(after, limit))
    data = [{**to_json(each), "session": session_id} for each in page.entries]
    for each in data:
        del each["conversation_id"]
    return Json({"object": "list", "data": data, "next": page.cursor})


@router.get("/v1/sessions/{session_id}/search")
async def search_session(
    session_id: str, q: str, service: Running, who: Reader, limit: Limit = 20
) -> Response:
    """Messages of the history that hold the words of `q`, the best first."""
    ref = await service.conversations.get(who, session_id)
    found = await ref.aask(SearchHistory(q, limit))
    data = [{**to_json(each), "session": session_id} for each in found]
    for each in data:
        del each["conversation_id"]
    return Json({"object": "list", "data": data})


@router.get("/v1/sessions/{session_id}/events")
async def follow_session(
    session_id: str,
    service: Running,
    who: Reader,
    after: int | None = None,
    last_event_id: LastEventId = None,
) -> Response:
    """The changes of a session: those behind `after` or `Last-Event-ID`, and all that follow.

    Without either only what follows.
    """
    info = await service.conversations.info(who, session_id)
    seen = last_event_id if last_event_id is not None else after
    start = info.head - 1 if seen is None else seen

    def read(position: int) -> Sequence[FeedChange]:
        return service.host.changes(info.id, after=position)

    return service.open_stream(who, _frames(service, who, info.id, read, "seq", start))


@router.get("/v1/events")
async def follow_all(
    service: Running,
    who: Reader,
    after: int = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """The changes of all sessions behind a position, and all that follow."""
    start = after if last_event_id is None else last_event_id
    frames = _frames(service, who, ALL, lambda at: service.host.feed(after=at), "position", start)
    return service.open_stream(who, frames)


async def _frames(
    service: Service,
    who: Principal,
    key: str,
    read: Callable[[int], Sequence[FeedChange]],
    number: str,
    after: int,
) -> AsyncIterator[bytes]:
    position = attrgetter(number)
    conversations = service.conversations
    yield PING  # the headers go out at once
    try:
        async for page in service.watch.follow(key, read, position, after):
            frames = [
                event_frame(change.kind, _fields(service, change), id=position(change))
                for change in page
                if conversations.is_own(who, change.conversation_id)
            ]
            yield b"".join(frames) or PING
    except ConversationClosed:
        yield event_frame("server_draining", {})


def _fields(service: Service, change: FeedChange) -> dict[str, object]:
    fields = to_json(change)
    del fields["conversation_id"], fields["position"]
    return {"session": service.conversations.id_of(change.conversation_id), **fields}
