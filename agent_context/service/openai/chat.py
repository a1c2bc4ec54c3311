"""`/v1/chat/completions`, for clients that send the whole history and for those that do not."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from agent_context.errors import AgentContextError, InvalidMessage
from agent_context.messages import Completion, FinishReason, Message, Usage
from agent_context.options import SendOptions
from agent_context.service.auth import Principal
from agent_context.service.errors import invalid, to_problem
from agent_context.service.exchange import (
    Exchange,
    begin_exchange,
    find_name,
    keeps_unstored,
    split_system,
)
from agent_context.service.options import Sampling, option_fields, parse_tools
from agent_context.service.responses import Json
from agent_context.service.service import IdempotencyKey, Running, Service, Writer
from agent_context.service.sse import PING, data_frame
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
)
from agent_context.tools import Tool

__all__ = ["router"]

router = APIRouter(tags=["openai"])

_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.CONTENT_FILTER: "content_filter",
}
_DONE = b"data: [DONE]\n\n"


class StreamOptions(BaseModel):
    include_usage: bool = False


class ChatBody(Sampling):
    """As OpenAI has it; fields that are not here are left alone."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore")

    model: str | None = None
    messages: list[dict[str, Any]] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, gt=0)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    stop: str | list[str] | None = None
    seed: int | None = None
    n: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    prompt_cache_key: str | None = None
    conversation: str | None = None
    """This service's own: the conversation that goes on with these messages alone."""


@router.post("/v1/chat/completions")
@router.post("/c/{conversation_id}/v1/chat/completions", include_in_schema=False)
async def complete(
    body: ChatBody,
    request: Request,
    service: Running,
    who: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answer a conversation.

    It is named by `X-Conversation-Id`, by a header or field that the client sends anyway, or by
    the path; what is new in `messages` goes on from what is known of it. `conversation` names one
    whose client sends only what is new. Without any name nothing is kept.
    """
    if body.n not in {None, 1}:
        raise invalid("n: one answer is given, so 1", param="n")
    begun = await _begin(service, who, body, request, idempotency_key)
    answer_id = f"chatcmpl-{secrets.token_hex(12)}"
    name = body.model or service.catalog.default
    if not body.stream:
        completion = await begun.turn.wait()
        return Json(_whole(answer_id, name, begun, completion), headers=begun.headers)
    await begun.turn.wait_until_begun()
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    writer = _Chunks(answer_id, name, begun, with_usage=with_usage)
    return service.open_stream(who, writer.frames(), begun.headers)


async def _begin(
    service: Service, who: Principal, body: ChatBody, request: Request, key: str | None
) -> Exchange:
    instructions, said = split_system(_messages(body.messages))
    options = _options(body, instructions)
    if body.conversation is not None:
        service.options(options)
        ref = await service.conversations.get_or_create(who, body.conversation)
        turn = await service.begin_turn(ref, messages=said, options=options, key=key)
        return Exchange(turn, "append", body.conversation)
    name = find_name(request, body.model_dump())
    if name is not None and body.store is False and not keeps_unstored(service, who):
        name = None
    return await begin_exchange(service, who, name, said, options, key=key)


def _messages(raw: Sequence[dict[str, Any]]) -> Sequence[Message]:
    messages: list[Message] = []
    for number, fields in enumerate(raw):
        try:
            # Ids are the conversation's own.
            kept = {
                key: value for key, value in fields.items() if key != "id" and value is not None
            }
            messages.append(Message.from_dict(kept))
        except InvalidMessage as error:
            raise invalid(
                f"messages.{number}: {error}", param=f"messages.{number}", code="invalid_message"
            ) from error
    return messages


def _options(body: ChatBody, instructions: str | None) -> SendOptions:
    extra = {
        name: value
        for name in ("presence_penalty", "frequency_penalty", "logit_bias", "parallel_tool_calls")
        if (value := getattr(body, name))
    }
    if body.parallel_tool_calls is False:
        extra["parallel_tool_calls"] = False
    tools: tuple[Tool, ...] = parse_tools(body.tools)
    return SendOptions(
        **option_fields(
            model=body.model,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            temperature=body.temperature,
            top_p=body.top_p,
            stop=body.stop,
            seed=body.seed,
            tools=tools or None,
            tool_choice=body.tool_choice,
            response_format=body.response_format,
            effort=body.reasoning_effort,
            instructions=instructions,
            extra=extra or None,
        )
    )


def _usage(usage: Usage) -> dict[str, Any]:
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }


def _whole(answer_id: str, name: str, begun: Exchange, completion: Completion) -> dict[str, Any]:
    message = completion.message
    said: dict[str, Any] = {
        "role": "assistant",
        "content": message.text or None if message.tool_calls else message.text,
        "refusal": None,
    }
    if message.reasoning:
        said["reasoning_content"] = message.reasoning
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    reason = _REASONS.get(completion.finish_reason, "stop")
    choice = {"index": 0, "message": said, "finish_reason": reason, "logprobs": None}
    return {
        "id": answer_id,
        "object": "chat.completion",
        "created": int(begun.turn.created_at),
        "model": completion.model or name,
        "choices": [choice],
        "usage": _usage(completion.usage),
    }


class _Chunks:
    """The chunks of one streamed answer."""

    def __init__(self, answer_id: str, name: str, begun: Exchange, *, with_usage: bool) -> None:
        self._turn = begun.turn
        self._with_usage = with_usage
        self._head = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": int(begun.turn.created_at),
            "model": name,
        }

    async def frames(self) -> AsyncIterator[bytes]:
        """Every chunk, `[DONE]` or an error at the end."""
        yield self._chunk({"role": "assistant", "content": ""})
        try:
            async for events in self._turn.follow():
                yield b"".join(part for event in events for part in self._parts(event)) or PING
        except AgentContextError as error:
            yield data_frame(to_problem(error).body())
            return
        yield _DONE

    def _parts(self, event: StreamEvent) -> Iterator[bytes]:
        match event:
            case TextDelta(text):
                yield self._chunk({"content": text})
            case ReasoningDelta(text):
                yield self._chunk({"reasoning_content": text})
            case ToolCallDelta():
                yield self._chunk({"tool_calls": [_call_delta(event)]})
            case Finished(completion):
                reason = _REASONS.get(completion.finish_reason, "stop")
                yield self._chunk({}, reason)
                if self._with_usage:
                    usage = _usage(completion.usage)
                    yield data_frame({**self._head, "choices": [], "usage": usage})
            case _:
                pass

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return data_frame({**self._head, "choices": [choice]})


def _call_delta(event: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": event.arguments}
    if event.name is not None:
        function["name"] = event.name
    first = {"id": event.id, "type": "function"} if event.id is not None else {}
    return {"index": event.index, **first, "function": function}
