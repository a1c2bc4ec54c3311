"""What a session takes of the window, what that costs, and making it smaller."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from fastapi import APIRouter, Response
from msgspec.structs import replace

from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zones
from agent_context.backend import Request
from agent_context.compression import EvictToolResults, SlidingWindow, Summarize, TokenBudget
from agent_context.compression.strategy import Strategy
from agent_context.errors import UsageError
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.protocol import CacheReport, Compress, EstimateTokens, Version
from agent_context.ref import read_zones
from agent_context.service.catalog import ModelRoute
from agent_context.service.errors import invalid
from agent_context.service.responses import Json
from agent_context.service.service import Reader, Running, Writer
from agent_context.service.sessions.shapes import CompressBody, message_json, to_json
from agent_context.service.usage import sum_usage

__all__ = ["router"]

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["context"])

_STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    "summarize": Summarize,
    "sliding_window": SlidingWindow,
    "token_budget": TokenBudget,
    "evict_tool_results": EvictToolResults,
}


@router.post("/compress")
async def compress(
    session_id: str, service: Running, who: Writer, body: CompressBody | None = None
) -> Response:
    """Compress the history now. `changed` is false if there was nothing to do."""
    ref = await service.conversations.get(who, session_id)
    report = await ref.aask(Compress(None if body is None else _strategy(body)))
    fields = to_json(report)
    return Json({**fields, "changed": report.changed, "version": await ref.aask(Version())})


@router.get("/context")
async def show_context(
    session_id: str,
    service: Running,
    who: Reader,
    model: str | None = None,
    text: str | None = None,
) -> Response:
    """What a turn sent now would send, as the model's vendor gets it, and what that takes.

    `text` is what the user would say. Figures are tokens.
    """
    ref = await service.conversations.get(who, session_id)
    options = service.options(SendOptions(model=model) if model else SendOptions())
    route = service.catalog.route(model)
    zones = await read_zones(ref)
    tokens = await ref.aask(EstimateTokens(options))
    cache = await ref.aask(CacheReport(options))
    messages = _request_messages(ref.id, zones, options, route, text)
    return Json(
        {
            "model": service.model_name(options),
            "vendor": route.backend.vendor,
            "tokens": {**dataclasses.asdict(tokens), "total": tokens.total, "free": tokens.free},
            "cache": to_json(cache.next),
            "messages": [message_json(message) for message in messages],
        }
    )


@router.get("/usage")
async def show_usage(session_id: str, service: Running, who: Reader) -> Response:
    """What the turns of a session cost, in tokens; in money where a price is known."""
    ref = await service.conversations.get(who, session_id)
    usage = await sum_usage(service, ref.id)
    totals = replace(await ref.aask(CacheReport()), last=None, next=None)
    return Json({"object": "usage", **usage, "cache": to_json(totals)})


def _strategy(body: CompressBody) -> Strategy | None:
    if body.strategy is None:
        return None
    make = _STRATEGIES.get(body.strategy)
    if make is None:
        known = ", ".join(_STRATEGIES)
        raise invalid(f"strategy: one of {known}; not {body.strategy!r}", param="strategy")
    try:
        return make(**body.arguments)
    except (TypeError, UsageError) as error:
        raise invalid(f"arguments: {error}", param="arguments") from error


def _request_messages(
    key: str, zones: Zones, options: SendOptions, route: ModelRoute, text: str | None
) -> tuple[Message, ...]:
    said = () if text is None else (from_message(Message.user(text)),)
    request = Request(
        conversation_id=key,
        zones=zones.extend(said),
        options=options.model_copy(update={"model": route.model}),
        facts=route.backend.model_facts(route.model),
    )
    return route.backend.to_request_messages(request)
