"""`/v1/responses`: answers that are kept, gone on from, followed again and cancelled."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from agent_context import AgentContext
from agent_context.errors import AgentContextError, ConversationBusy
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.protocol import Compress, EstimateTokens, Extend, Fork, Messages
from agent_context.ref import ContextRef, read_zones
from agent_context.service.auth import Principal
from agent_context.service.conversations import make_id
from agent_context.service.errors import Problem, ServiceError, invalid
from agent_context.service.exchange import (
    ask_once,
    begin_exchange,
    find_name,
    keeps_unstored,
    split_system,
)
from agent_context.service.openai.items import compaction_item, parse_items, stored_items
from agent_context.service.openai.paging import ItemOrder, page_items
from agent_context.service.openai.response import (
    ResponseRecord,
    make_response_id,
    usage_json,
)
from agent_context.service.openai.response_store import LiveResponse, ResponseStore
from agent_context.service.options import Sampling, option_fields, parse_tools
from agent_context.service.responses import Json
from agent_context.service.service import IdempotencyKey, Reader, Running, Service, Writer
from agent_context.service.sse import event_frame
from agent_context.service.turns import LiveTurn

__all__ = ["router"]

router = APIRouter(tags=["openai"])

Item = dict[str, Any]


class ResponseBody(Sampling):
    """As OpenAI has it; fields that are not here are left alone."""

    model: str | None = None
    input: str | list[Item] = Field(default_factory=list[Item])
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    stream: bool | None = None
    background: bool | None = None
    store: bool | None = None
    max_output_tokens: int | None = Field(default=None, gt=0)
    max_tool_calls: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = Field(default=None, max_length=16)
    top_logprobs: int | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    @property
    def conversation_id(self) -> str | None:
        if isinstance(self.conversation, Mapping):
            return str(self.conversation.get("id") or "") or None
        return self.conversation


def _store(request: Request, service: Running) -> ResponseStore:
    state = request.app.state
    if not hasattr(state, "responses"):
        state.responses = ResponseStore(service)
    found: ResponseStore = state.responses
    return found


Store = Annotated[ResponseStore, Depends(_store)]


@router.post("/v1/responses")
@router.post("/c/{conversation_id}/v1/responses", include_in_schema=False)
async def respond(
    body: ResponseBody,
    request: Request,
    service: Running,
    responses: Store,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answer, in a new conversation or in one that is named.

    `previous_response_id` goes on from that response: in its conversation if it is the last, else
    in a fork. `store: false` keeps nothing, unless the client names its conversation and the
    operator lets that be kept.
    """
    if body.background and body.store is False:
        raise invalid("background: such a response must be stored", param="background")
    try:
        live = await _Begin(service, responses, who, body, request, idempotency_key).run()
    except ConversationBusy as error:
        raise ServiceError(
            Problem(
                status=400, message=str(error), code="conversation_locked", param="conversation"
            )
        ) from error
    if body.background and not body.stream:
        return Json({**live.record.response, "status": "queued"})
    if body.stream:
        await live.turn.wait_until_begun()
        return service.open_stream(who, live.frames())
    await live.turn.wait()
    await live.ended.wait()
    return Json(live.record.response)


class _Begin:
    """One request, on its way to a response that runs."""

    def __init__(
        self,
        service: Service,
        responses: ResponseStore,
        who: Principal,
        body: ResponseBody,
        request: Request,
        key: str | None,
    ) -> None:
        self._service, self._responses, self._who = service, responses, who
        self._body, self._request, self._key = body, request, key
        self._messages = parse_items(body.input)

    async def run(self) -> LiveResponse:
        body = self._body
        if body.conversation is not None and body.previous_response_id is not None:
            raise invalid(
                "previous_response_id: give it or conversation, not both",
                param="previous_response_id",
            )
        stored = body.store is not False
        options = self._service.options(response_options(self._service, body))
        if body.conversation is not None or body.previous_response_id is not None:
            return await self._keep(await self._go_on(options), keep=stored)
        if not self._messages:
            raise invalid("input: there is nothing to answer", param="input")
        name = find_name(self._request, {} if stored else body.model_dump())
        if name is not None and (stored or keeps_unstored(self._service, self._who)):
            return await self._resent(name, options, keep=stored)
        if not stored:
            instructions, said = split_system(self._messages)
            begun = await ask_once(self._service, said, _told(options, instructions))
            return await self._keep(begun.turn, keep=False)
        ref = await self._service.conversations.create(self._who, make_id("conv"))
        return await self._keep(await self._begin_turn(ref, options), keep=True)

    async def _resent(self, name: str, options: SendOptions, *, keep: bool) -> LiveResponse:
        instructions, said = split_system(self._messages)
        begun = await begin_exchange(
            self._service, self._who, name, said, _told(options, instructions), key=self._key
        )
        return await self._keep(begun.turn, keep=keep and begun.conversation_id is not None)

    async def _go_on(self, options: SendOptions) -> LiveTurn:
        previous = self._body.previous_response_id
        if previous is None:
            name = self._body.conversation_id
            if name is None:
                raise invalid("conversation: an id is expected", param="conversation")
            ref = await self._service.conversations.get(self._who, name)
            return await self._begin_turn(ref, options)
        ref = await self._previous(previous)
        return await self._begin_turn(ref, options)

    async def _begin_turn(self, ref: ContextRef, options: SendOptions) -> LiveTurn:
        return await self._service.begin_turn(
            ref, messages=self._messages, options=options, key=self._key
        )

    async def _previous(self, response_id: str) -> ContextRef:
        """The conversation as it was after a response: that one itself, or a fork."""
        try:
            record = await self._responses.get(self._who, response_id)
        except ServiceError:
            record = None
        name = self._responses.conversation_id(response_id)
        if record is None or name is None:
            raise _no_previous(f"there is no response {response_id!r}")
        if record.message_id is None:
            status = record.response["status"]
            raise _no_previous(f"response {response_id!r} has no answer: it is {status}")
        ref = await self._service.conversations.get(self._who, name)
        zones = await read_zones(ref)
        ids = [record.id for record in zones.incremental]
        if record.message_id not in ids:
            raise _no_previous(f"response {response_id!r} can't be gone on from: it is compressed")
        at = ids.index(record.message_id) + 1
        if at == len(ids) and not self._service.turns.of(ref.id):
            return ref
        key = self._service.conversations.key_of(self._who, make_id("conv"))
        return await ref.aask(Fork(at, key))

    async def _keep(self, turn: LiveTurn, *, keep: bool) -> LiveResponse:
        name = self._service.conversations.id_of(turn.ref.id)
        body = self._body
        record = ResponseRecord(
            response=begun_response(self._service, body, make_response_id(name), turn),
            input=[item for message in self._messages for item in stored_items(message)],
        )
        if keep:
            record.response["conversation"] = {"id": name}
        return await self._responses.begin(record, turn, keep=keep, queued=bool(body.background))


def _no_previous(text: str) -> ServiceError:
    return invalid(text, param="previous_response_id", code="previous_response_not_found")


def _told(options: SendOptions, system: str | None) -> SendOptions:
    """The options, told in addition what the input says to the system."""
    told = "\n\n".join(filter(None, (options.instructions, system)))
    return SendOptions(instructions=told).merged_over(options) if told else options


def response_options(service: Service, body: ResponseBody) -> SendOptions:
    """How the model is asked. Raises `InvalidOptions`."""
    reasoning = body.reasoning or {}
    fields = option_fields(
        model=body.model,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        tools=parse_tools(body.tools) or None,
        tool_choice=body.tool_choice,
        effort=reasoning.get("effort") if _thinks(service, body) else None,
        instructions=body.instructions or None,
        response_format=_response_format(body.text or {}),
        auto_compress=False if body.truncation == "disabled" else None,
        soft_limit=_soft_limit(service, body),
    )
    return SendOptions(**fields)


def _thinks(service: Service, body: ResponseBody) -> bool:
    """Whether the model can: agents ask every model how hard it should."""
    route = service.catalog.find(body.model)
    return route is not None and route.backend.model_facts(route.model).thinks


def _response_format(text: Mapping[str, Any]) -> dict[str, Any] | None:
    match text.get("format"):
        case {"type": "json_schema", **rest}:
            return {"type": "json_schema", "json_schema": rest}
        case {"type": str(kind)} if kind != "text":
            return {"type": kind}
        case _:
            return None


def _soft_limit(service: Service, body: ResponseBody) -> float | None:
    """The share of the window past which `context_management` wants the history compressed."""
    for rule in body.context_management or ():
        threshold = rule.get("compact_threshold")
        if rule.get("type") == "compaction" and isinstance(threshold, int):
            route = service.catalog.find(body.model)
            window = 0 if route is None else route.backend.model_facts(route.model).context_window
            return min(1.0, max(0.01, threshold / window)) if window else None
    return None


def begun_response(
    service: Service, body: ResponseBody, response_id: str, turn: LiveTurn
) -> dict[str, Any]:
    """The response before anything has come: every field that the API has."""
    reasoning = body.reasoning or {}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(turn.created_at),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.background),
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": body.model or service.catalog.default,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}, **(body.text or {})},
        "tool_choice": body.tool_choice or "auto",
        "tools": [_tool(each) for each in body.tools or () if each.get("type") == "function"],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "presence_penalty": body.presence_penalty or 0.0,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "truncation": body.truncation or "auto",
        "usage": None,
    }


def _tool(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "name": raw.get("name"),
        "description": raw.get("description"),
        "parameters": raw.get("parameters") or {},
        "strict": raw.get("strict") is not False,
    }


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(body: ResponseBody, service: Running, who: Writer) -> Response:
    """What a request would take of the window, in tokens."""
    options = service.options(response_options(service, body))
    total = 0
    if body.conversation_id is not None:
        ref = await service.conversations.get(who, body.conversation_id)
        total += (await ref.aask(EstimateTokens())).total
    ref = service.transcripts.aside(()).ref
    try:
        if messages := parse_items(body.input):
            await ref.aask(Extend(messages))
        total += (await ref.aask(EstimateTokens(options))).total
    finally:
        service.transcripts.drop(ref)
    return Json({"object": "response.input_tokens", "input_tokens": total})


@router.post("/v1/responses/compact")
async def compact(body: ResponseBody, service: Running, responses: Store, who: Writer) -> Response:
    """Compress a history that the client keeps, to one item that it sends in its place."""
    if body.model is None:
        raise invalid("model: which one compresses", param="model")
    options = service.options(SendOptions(model=body.model))
    messages = await _history(body, service, responses, who)
    ref: ContextRef = AgentContext.start(service.conversations.backend, options=options)
    try:
        await ref.aask(Extend(messages))
        report = await ref.aask(Compress(service.config.compression))
        left = await ref.aask(Messages())
    finally:
        service.transcripts.drop(ref)
    item = compaction_item(f"cmp_{secrets.token_hex(8)}", left)
    return Json(
        {
            "id": make_id("resp"),
            "object": "response.compaction",
            "created_at": int(time.time()),
            "output": [item],
            "usage": usage_json(report.usage),
        }
    )


async def _history(
    body: ResponseBody, service: Service, responses: ResponseStore, who: Principal
) -> Sequence[Message]:
    said: tuple[Message, ...] = ()
    if body.previous_response_id is not None:
        await responses.get(who, body.previous_response_id)
        name = responses.conversation_id(body.previous_response_id) or ""
        ref = await service.conversations.get(who, name)
        said = await ref.aask(Messages())
    messages = (*said, *parse_items(body.input))
    if not messages:
        raise invalid("input: there is nothing to compact", param="input")
    return messages


@router.get("/v1/responses/{response_id}")
async def get_response(
    response_id: str,
    service: Running,
    responses: Store,
    who: Reader,
    *,
    stream: bool = False,
    starting_after: int = -1,
) -> Response:
    """A response, or its events behind the one with this number."""
    live = responses.find_live(who, response_id)
    record = await responses.get(who, response_id)
    if not stream:
        return Json(record.response)
    if live is not None:
        return service.open_stream(who, live.frames(starting_after))
    return service.open_stream(who, _last_event(record, starting_after))


async def _last_event(record: ResponseRecord, after: int) -> AsyncIterator[bytes]:
    """Of a response that ended in another process only the end is left, which holds it all."""
    status = record.response["status"]
    kind = f"response.{status if status in {'completed', 'incomplete'} else 'failed'}"
    number = max(record.events - 1, 0)
    if number > after:
        event = {"type": kind, "sequence_number": number, "response": record.response}
        yield event_frame(kind, event)


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, responses: Store, who: Writer) -> Response:
    """Forget a response. Its conversation keeps what was said."""
    await responses.delete(who, response_id)
    return Json({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, responses: Store, who: Writer) -> Response:
    """End a response that runs in the background."""
    record = await responses.get(who, response_id)
    if not record.response["background"]:
        raise invalid("response_id: only one in the background can be cancelled")
    live = responses.find_live(who, response_id)
    if live is not None and not live.turn.done:
        try:
            await live.turn.cancel()
        except AgentContextError as error:
            raise invalid(f"response_id: {error}") from error
        await live.ended.wait()
    return Json(record.response)


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    response_id: str,
    responses: Store,
    who: Reader,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: ItemOrder = "desc",
) -> Response:
    """What the request of a response said."""
    record = await responses.get(who, response_id)
    return Json(page_items(record.input, after=after, limit=limit, order=order))
