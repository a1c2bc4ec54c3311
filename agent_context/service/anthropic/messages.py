"""`/v1/messages`, for clients that speak to Anthropic and send the whole history."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from agent_context.errors import AgentContextError
from agent_context.messages import Completion, FinishReason, Usage
from agent_context.options import SendOptions
from agent_context.protocol import EstimateTokens, Extend
from agent_context.service.anthropic.blocks import (
    parse_messages,
    parse_system,
    to_blocks,
    usage_json,
)
from agent_context.service.errors import to_problem
from agent_context.service.exchange import Exchange, begin_exchange, find_name
from agent_context.service.options import option_fields, parse_tools
from agent_context.service.responses import Json, problem_body
from agent_context.service.service import IdempotencyKey, Running, Service, Writer
from agent_context.service.sse import event_frame
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
)

__all__ = ["router"]

router = APIRouter(tags=["anthropic"])

_REASONS: Final = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}
_SESSION: Final = re.compile(r"session_([0-9a-f-]{36})")


class TokensBody(BaseModel):
    """What is counted: as Anthropic has it; fields that are not here are left alone."""

    model: str
    messages: list[dict[str, Any]] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class MessagesBody(TokensBody):
    """A request for an answer."""

    max_tokens: int = Field(gt=0)
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None


@router.post("/v1/messages")
@router.post("/c/{conversation_id}/v1/messages", include_in_schema=False)
async def create_message(
    body: MessagesBody,
    request: Request,
    service: Running,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answer a conversation.

    It is named by `X-Conversation-Id`, by the header that Claude Code sends anyway, or by the
    path; without any of these nothing is kept.
    """
    options = _options(service, body)
    name = find_name(request, {}) or _session(body)
    sent = parse_messages(body.messages)
    begun = await begin_exchange(service, who, name, sent, options, key=idempotency_key)
    if not body.stream:
        completion = await begun.turn.wait()
        return Json(_whole(body.model, begun, completion), headers=begun.headers)
    await begun.turn.wait_until_begun()
    return service.open_stream(who, _Blocks(body.model, begun).frames(), begun.headers)


@router.post("/v1/messages/count_tokens")
@router.post("/c/{conversation_id}/v1/messages/count_tokens", include_in_schema=False)
async def count_tokens(body: TokensBody, service: Running, _: Writer) -> Response:
    """What the messages would take of the window, in tokens."""
    options = service.options(_token_options(service, body))
    ref = service.transcripts.aside(()).ref
    try:
        await ref.aask(Extend(parse_messages(body.messages)))
        tokens = await ref.aask(EstimateTokens(options))
    finally:
        service.transcripts.drop(ref)
    return Json({"input_tokens": tokens.total})


def _session(body: MessagesBody) -> str | None:
    """The session in the `user_id` of Claude Code, where it sends no header (2.0 and before)."""
    found = _SESSION.search(str((body.metadata or {}).get("user_id") or ""))
    return None if found is None else found[1]


def _token_options(service: Service, body: TokensBody) -> SendOptions:
    tools = [_tool(each) for each in body.tools or () if each.get("type", "custom") == "custom"]
    wanted = (body.thinking or {}).get("type") in {"enabled", "adaptive"}
    route = service.catalog.find(body.model)
    thinks = route is not None and route.backend.model_facts(route.model).thinks
    return SendOptions(
        **option_fields(
            model=body.model,
            tools=parse_tools(tools) or None,
            tool_choice=body.tool_choice,
            instructions=parse_system(body.system),
            thinking=True if wanted and thinks else None,
        )
    )


def _tool(raw: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: raw.get(name) for name in ("name", "description")}
    return {**fields, "parameters": raw.get("input_schema")}


def _options(service: Service, body: MessagesBody) -> SendOptions:
    usual = service.options(_token_options(service, body))
    route = service.catalog.route(body.model)
    # A client has to name a figure, and knows nothing of the model's own.
    most = route.backend.model_facts(route.model).max_output
    own = option_fields(
        max_tokens=min(body.max_tokens, most) if most else body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=tuple(body.stop_sequences or ()) or None,
        extra={"top_k": body.top_k} if body.top_k else None,
    )
    return SendOptions(**own).merged_over(usual)


def _whole(model: str, begun: Exchange, completion: Completion) -> dict[str, Any]:
    return {
        **_head(model, begun),
        "model": completion.model or model,
        "content": to_blocks(completion.message),
        "stop_reason": _REASONS.get(completion.finish_reason, "end_turn"),
        "usage": usage_json(completion.usage),
    }


def _head(model: str, begun: Exchange) -> dict[str, Any]:
    return {
        "id": f"msg_{begun.turn.id or secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_json(Usage()),
    }


class _Blocks:
    """The events of one streamed answer: each block is begun, written and ended."""

    def __init__(self, model: str, begun: Exchange) -> None:
        self._model = model
        self._begun = begun
        self._index = -1
        self._open: tuple[str, int] | None = None
        """The kind of the block that is being written, and which call it is."""

    async def frames(self) -> AsyncIterator[bytes]:
        """Every event, `message_stop` or an error at the end."""
        yield _frame("message_start", message=_head(self._model, self._begun))
        try:
            async for events in self._begun.turn.follow():
                parts = [part for event in events for part in self._parts(event)]
                yield b"".join(parts) or _frame("ping")
        except AgentContextError as error:
            body = problem_body("/v1/messages", to_problem(error))
            yield event_frame("error", body)

    def _parts(self, event: StreamEvent) -> Iterator[bytes]:
        match event:
            case TextDelta(text) if text:
                block = {"type": "text", "text": ""}
                yield from self._write("text", block, {"type": "text_delta", "text": text})
            case ReasoningDelta(text) if text:
                block = {"type": "thinking", "thinking": "", "signature": ""}
                delta = {"type": "thinking_delta", "thinking": text}
                yield from self._write("thinking", block, delta)
            case ToolCallDelta():
                delta = {"type": "input_json_delta", "partial_json": event.arguments}
                yield from self._write("tool_use", _tool_use(event), delta, event.index)
            case Finished(completion):
                yield from self._close()
                reason = _REASONS.get(completion.finish_reason, "end_turn")
                yield _frame(
                    "message_delta",
                    delta={"stop_reason": reason, "stop_sequence": None},
                    usage=usage_json(completion.usage),
                )
                yield _frame("message_stop")
            case _:
                pass

    def _write(
        self, kind: str, block: dict[str, Any], delta: dict[str, Any], call: int = 0
    ) -> Iterator[bytes]:
        if self._open != (kind, call):
            yield from self._close()
            self._index += 1
            self._open = kind, call
            yield _frame("content_block_start", index=self._index, content_block=block)
        yield _frame("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        if self._open[0] == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            yield _frame("content_block_delta", index=self._index, delta=delta)
        self._open = None
        yield _frame("content_block_stop", index=self._index)


def _tool_use(event: ToolCallDelta) -> dict[str, Any]:
    """A call without its arguments, which follow in pieces."""
    return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}


def _frame(kind: str, **fields: object) -> bytes:
    return event_frame(kind, {"type": kind, **fields})
