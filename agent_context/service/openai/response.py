"""A Response, and the events in which it comes: both made from the events of its turn."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from agent_context.errors import TurnCancelled
from agent_context.messages import Completion, FinishReason, Usage
from agent_context.service.errors import to_problem
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolRoundFinished,
)

__all__ = ["EventWriter", "ResponseRecord", "end_response", "make_response_id", "usage_json"]

Fields = dict[str, Any]


class ResponseRecord(Struct, kw_only=True):
    """What is kept of a response, beside its conversation."""

    response: Fields
    """As the API gives it."""
    input: list[Fields]
    message_id: str | None = None
    """The last message of the turn: where a later request goes on."""
    events: int = 0
    """How many events it was told in."""
    stream: bool = field(default=False)


def make_response_id(conversation_id: str) -> str:
    """An id that tells its conversation."""
    text = secrets.token_hex(6) + conversation_id
    return "resp_" + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def conversation_of(response_id: str) -> str | None:
    """The conversation of a response; None if this is no id of one."""
    prefix, _, text = response_id.partition("_")
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, ValueError):
        return None
    return decoded[12:] or None if prefix == "resp" else None


def usage_json(usage: Usage) -> Fields:
    """Tokens, in the words of the Responses API."""
    read, written = usage.input_tokens or 0, usage.output_tokens or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.cache_write_tokens or 0,
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": read + written,
    }


def end_response(
    begun: Mapping[str, Any],
    output: Sequence[Fields],
    completion: Completion | None,
    error: BaseException | None,
    *,
    now: float,
) -> Fields:
    """The response as its turn has left it."""
    fields = {**begun, "output": list(output)}
    if completion is None:
        if error is None or isinstance(error, TurnCancelled):
            return {**fields, "status": "cancelled"}
        problem = to_problem(error)
        code = "rate_limit_exceeded" if problem.status == 429 else "server_error"
        return {**fields, "status": "failed", "error": {"code": code, "message": problem.message}}
    reasons = {
        FinishReason.LENGTH: "max_output_tokens",
        FinishReason.CONTENT_FILTER: "content_filter",
    }
    reason = reasons.get(completion.finish_reason)
    return {
        **fields,
        "status": "completed" if reason is None else "incomplete",
        "incomplete_details": None if reason is None else {"reason": reason},
        "completed_at": None if reason else int(now),
        "model": completion.model or fields["model"],
        "usage": usage_json(completion.usage),
    }


_TERMINAL: Final = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}


class _Open(Struct):
    """The item that is being written."""

    kind: str
    item: Fields
    index: int
    text: list[str]
    call: int = -1


class EventWriter:
    """Tells a turn in the events of the Responses API, in their order.

    The same turn is told in the same events, with the same ids and numbers, to whoever asks and
    from wherever: a client that comes back misses nothing.
    """

    def __init__(self, response_id: str, *, queued: bool = False) -> None:
        self._suffix = response_id.partition("_")[2][:16]
        self._queued = queued
        self._number = 0
        self._open: _Open | None = None
        self.output: list[Fields] = []
        """The items so far, whole."""

    @property
    def count(self) -> int:
        """How many events were told."""
        return self._number

    def begin(self, response: Fields) -> Iterator[Fields]:
        """Before anything has come."""
        if self._queued:
            queued = {**response, "status": "queued"}
            yield self._event("response.created", response=queued)
            yield self._event("response.queued", response=queued)
        else:
            yield self._event("response.created", response=response)
        yield self._event("response.in_progress", response=response)

    def tell(self, event: StreamEvent) -> Iterator[Fields]:
        """What one event of the turn comes to."""
        match event:
            case TextDelta(text):
                yield from self._write("message", text)
            case ReasoningDelta(text):
                yield from self._write("reasoning", text)
            case ToolCallDelta():
                yield from self._write_call(event)
            case Finished() | ToolRoundFinished():
                yield from self.close()
            case _:
                pass

    def end(self, response: Fields) -> Iterator[Fields]:
        """The last event, with the response as it is kept."""
        yield self._event(_TERMINAL[response["status"]], response=response)

    def _event(self, kind: str, **fields: object) -> Fields:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _in_item(self, kind: str, opened: _Open, **fields: object) -> Fields:
        place = {"item_id": opened.item["id"], "output_index": opened.index}
        return self._event(kind, **place, **fields)

    def _begin_item(self, kind: str, item: Fields, call: int = -1) -> Iterator[Fields]:
        yield from self.close()
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
        index = len(self.output)
        named = {"id": f"{prefix}_{self._suffix}{index}", "type": kind, "status": "in_progress"}
        self._open = _Open(kind, {**named, **item}, index, [], call)
        yield self._event("response.output_item.added", output_index=index, item=self._open.item)
        if kind != "function_call":
            part = _part(kind, "")
            yield self._in_item(
                "response.content_part.added", self._open, content_index=0, part=part
            )

    def _write(self, kind: str, text: str) -> Iterator[Fields]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            own: Fields = {"role": "assistant"} if kind == "message" else {"summary": []}
            yield from self._begin_item(kind, {**own, "content": []})
        opened = self._open
        assert opened is not None  # noqa: S101 - it was begun
        opened.text.append(text)
        if kind == "message":
            name, more = "response.output_text.delta", {"logprobs": list[Fields]()}
        else:
            name, more = "response.reasoning_text.delta", {}
        yield self._in_item(name, opened, content_index=0, delta=text, **more)

    def _write_call(self, event: ToolCallDelta) -> Iterator[Fields]:
        opened = self._open
        if opened is None or opened.kind != "function_call" or opened.call != event.index:
            item = {"call_id": event.id or f"call_{event.index}", "name": event.name or ""}
            yield from self._begin_item("function_call", {**item, "arguments": ""}, event.index)
            opened = self._open
        assert opened is not None  # noqa: S101 - it was begun
        if event.arguments:
            opened.text.append(event.arguments)
            kind = "response.function_call_arguments.delta"
            yield self._in_item(kind, opened, delta=event.arguments)

    def close(self, status: str = "completed") -> Iterator[Fields]:
        """End the item that is being written, if one is."""
        opened, self._open = self._open, None
        if opened is None:
            return
        text = "".join(opened.text)
        item = {**opened.item, "status": status}
        if opened.kind == "function_call":
            item["arguments"] = text
            kind = "response.function_call_arguments.done"
            yield self._in_item(kind, opened, name=item["name"], arguments=text)
        else:
            part = _part(opened.kind, text)
            item["content"] = [part]
            if opened.kind == "message":
                kind, more = "response.output_text.done", {"logprobs": list[Fields]()}
            else:
                kind, more = "response.reasoning_text.done", {}
            yield self._in_item(kind, opened, content_index=0, text=text, **more)
            kind = "response.content_part.done"
            yield self._in_item(kind, opened, content_index=0, part=part)
        self.output.append(item)
        yield self._event("response.output_item.done", output_index=opened.index, item=item)


def _part(kind: str, text: str) -> Fields:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
