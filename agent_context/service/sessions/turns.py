"""Turns of a session: asked for, followed, found again, cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel

from agent_context.errors import AgentContextError
from agent_context.protocol import Cancel
from agent_context.service.errors import not_found, to_problem
from agent_context.service.responses import Json
from agent_context.service.service import (
    IdempotencyKey,
    IfMatch,
    Reader,
    Running,
    Service,
    Writer,
    turn_name,
)
from agent_context.service.sessions.shapes import (
    SendBody,
    completion_json,
    message_json,
    parse_version,
)
from agent_context.service.sse import PING, event_frame
from agent_context.service.turns import LiveTurn
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolRoundFinished,
    ToolRoundStarted,
    UsageReported,
)

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["turns"])


class CancelBody(BaseModel):
    turn_id: str | None = None
    """None for the one that runs."""


@router.post("/send")
async def send(
    session_id: str,
    body: SendBody,
    service: Running,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    """One turn: say something and get the answer, whole or as a stream of events.

    The turn belongs to the session: whoever leaves finds the answer there, or follows the turn
    again by its id.
    """
    ref = await service.conversations.get(who, session_id)
    service.check_key(ref, idempotency_key, body.model_dump(exclude={"stream"}))
    turn = await service.begin_turn(
        ref,
        messages=body.said(),
        options=body.send_options(),
        key=idempotency_key,
        version=parse_version(if_match),
    )
    if body.background:
        return Json(_turn_json(turn), status_code=202)
    if not body.stream:
        completion = await turn.wait()
        return Json({"turn_id": turn.id, **completion_json(completion)})
    await turn.wait_until_begun()
    return service.open_stream(who, _frames(turn, 0), {"X-Turn-Id": turn.id})


@router.get("/turns/{turn_id}")
async def get_turn(session_id: str, turn_id: str, service: Running, who: Reader) -> Response:
    """A turn that runs, or has ended lately, and its answer."""
    ref = await service.conversations.get(who, session_id)
    return Json(_turn_json(_find(service, ref.id, turn_id)))


@router.get("/turns/{turn_id}/events")
async def follow_turn(
    session_id: str,
    turn_id: str,
    service: Running,
    who: Reader,
    last_event_id: Annotated[int | None, Header(ge=0)] = None,
) -> Response:
    """The events of a turn, from the first or from behind `Last-Event-ID` on."""
    ref = await service.conversations.get(who, session_id)
    turn = _find(service, ref.id, turn_id)
    return service.open_stream(who, _frames(turn, last_event_id or 0), {"X-Turn-Id": turn.id})


@router.post("/cancel")
async def cancel(
    session_id: str, service: Running, who: Writer, body: CancelBody | None = None
) -> Response:
    """End a turn now. What had arrived is kept, unless the turn's `on_abort` says otherwise."""
    ref = await service.conversations.get(who, session_id)
    turn_id = None if body is None else body.turn_id
    return Json({"cancelled": await ref.aask(Cancel(turn_id))})


def _find(service: Service, key: str, turn_id: str) -> LiveTurn:
    turn = service.turns.find(turn_name(key, turn_id))
    if turn is None:
        raise not_found(
            f"no turn {turn_id!r} runs or has ended lately; its answer is among the messages",
            code="turn_not_found",
        )
    return turn


def _turn_json(turn: LiveTurn) -> dict[str, Any]:
    status = "running"
    if turn.done:
        status = "failed" if turn.error is not None else "completed"
    fields: dict[str, Any] = {"turn_id": turn.id, "object": "turn", "status": status}
    if turn.completion is not None:
        fields |= completion_json(turn.completion)
    if turn.error is not None:
        fields |= to_problem(turn.error).body()
    return fields


async def _frames(turn: LiveTurn, after: int) -> AsyncIterator[bytes]:
    """Frames whose ids count the events, so that a client that comes back knows where it was."""
    if not after:
        yield event_frame("turn", {"turn_id": turn.id})
    try:
        async for events in turn.follow(after):
            frames = [_frame(event, after + at) for at, event in enumerate(events, 1)]
            after += len(events)
            yield b"".join(frames) or PING
    except AgentContextError as error:
        problem = to_problem(error)
        name = "server_draining" if problem.code == "draining" else "error"
        yield event_frame(name, problem.body())


def _frame(event: StreamEvent, number: int) -> bytes:
    return event_frame(*_named(event), id=number)


def _named(event: StreamEvent) -> tuple[str, dict[str, Any]]:
    match event:
        case TextDelta(text):
            return "text", {"text": text}
        case ReasoningDelta(text):
            return "reasoning", {"text": text}
        case ToolCallDelta(index, id, name, arguments):
            return "tool_call", {"index": index, "id": id, "name": name, "arguments": arguments}
        case UsageReported(usage):
            return "usage", usage.model_dump(mode="json")
        case ToolRoundStarted(calls):
            return "calls", {"calls": [call.model_dump(mode="json") for call in calls]}
        case ToolRoundFinished(completion, results):
            said = [message_json(result) for result in results]
            return "round", {**completion_json(completion), "results": said}
        case Finished(completion):
            return "finished", completion_json(completion)
