"""Chat-completions answers, whole or in chunks, as every server writes them differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import (
    Completion,
    FinishReason,
    Message,
    Origin,
    Usage,
    new_id,
)
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from agent_context.wire.completion_checks import (
    drop_incomplete_calls,
    empty_response_error,
    is_object,
    parse_json_object,
)
from agent_context.wire.errors import error_from_stream
from agent_context.wire.lenient_json import as_count, as_list, as_mapping
from agent_context.wire.reasoning_details import join_details

__all__ = ["ChunkReader", "parse_chunk", "parse_completion", "parse_messages", "parse_usage"]

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    # Zhipu, docs.z.ai chat-completion (2026-09).
    "sensitive": FinishReason.CONTENT_FILTER,
    # Whatever is new is OTHER; the failures below are none at all.
}

_FAILED = {
    # Zhipu, docs.z.ai chat-completion (2026-09); DeepSeek, api-docs (2026-10).
    "model_context_window_exceeded": (ErrorKind.CONTEXT_OVERFLOW, False, "the window is full"),
    "network_error": (ErrorKind.TRANSPORT, True, "the server lost its own connection"),
    "insufficient_system_resource": (ErrorKind.OVERLOADED, True, "the server ran out of resources"),
}
"""Finish reasons of answers that are not whole, whatever has arrived: kind, retryable, why."""


def parse_messages(response: Mapping[str, Any], *, vendor: str) -> tuple[Message, ...]:
    """The messages in a whole answer, one for each choice that says anything."""
    _raise_error(response, vendor)
    readers: list[ChunkReader] = []
    for choice in _choices(response):
        readers.append(ChunkReader(vendor))
        readers[-1].feed({**response, "choices": [{**choice, "index": 0}]})
    return tuple(reader.finish().completion.message for reader in readers if not reader.empty)


def parse_completion(
    response: Mapping[str, Any], *, vendor: str, request_id: str | None = None
) -> Completion:
    """The answer that a whole response is. Raises `BackendError` if it is none."""
    if not response.get("error") and not _choices(response):
        why = f"the answer has no choices, only {sorted(response)}"
        raise BackendError(why, kind=ErrorKind.PROTOCOL, vendor=vendor, request_id=request_id)
    reader = ChunkReader(vendor, request_id)
    reader.feed(response)
    return reader.finish().completion


def parse_chunk(chunk: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
    """What one chunk says on its own; calls are numbered as the server numbers them."""
    sent = iter(_calls(_delta(_choice(chunk))))
    return tuple(
        _as_sent(event, as_mapping(next(sent))) if isinstance(event, ToolCallDelta) else event
        for event in ChunkReader("").feed(chunk)
    )


def _as_sent(event: ToolCallDelta, sent: Mapping[str, Any]) -> ToolCallDelta:
    index = as_count(sent.get("index"))
    number = event.index if index is None else index
    return ToolCallDelta(number, _text(sent.get("id")) or None, event.name, event.arguments)


def parse_usage(raw: object) -> Usage | None:
    """The usage that a chunk or an answer reports; None if it reports none.

    Names: OpenAI (openai 3.57, 2026-11), DeepSeek's `prompt_cache_hit_tokens` (api-docs, 2026-10),
    Kimi's `cached_tokens` (2026).
    """
    usage = as_mapping(raw)
    if not usage:
        return None
    read, written = "prompt_tokens_details", "completion_tokens_details"
    cached = (
        as_mapping(usage, read).get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),
        usage.get("cached_tokens"),
    )
    return Usage(
        input_tokens=as_count(usage.get("prompt_tokens")),
        output_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=next((n for n in map(as_count, cached) if n is not None), None),
        cache_write_tokens=as_count(as_mapping(usage, read).get("cache_write_tokens")),
        reasoning_tokens=as_count(as_mapping(usage, written).get("reasoning_tokens")),
    )


@dataclass(slots=True)
class _Open:
    """A call that is being written, and the number it has in the events."""

    number: int
    id: str
    named: bool
    arguments: list[str]


class ChunkReader:
    """Turns the chunks of one answer into events, and at the end into a completion.

    Takes what servers do: fields missing, null or repeated, calls without index or id, whole or in
    pieces, usage on any chunk. A whole response counts as one chunk.
    """

    def __init__(self, vendor: str, request_id: str | None = None) -> None:
        self.done = False
        """Whether the server said `[DONE]`."""
        self.model = ""
        self.raw_finish_reason: str | None = None
        self._vendor = vendor
        self._request_id = request_id
        self._assembly = StreamAccumulator(Origin(vendor=vendor))
        self._details: list[object] = []
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}

    @property
    def finished(self) -> bool:
        """Whether a finish reason has been seen."""
        return self.raw_finish_reason is not None

    @property
    def empty(self) -> bool:
        """Whether nothing that a message could hold has been seen."""
        return self._assembly.empty

    def read(self, payload: bytes) -> list[StreamEvent]:
        """The events of one `data` payload. `BackendError` for one that is no JSON object."""
        if payload.startswith(b"[DONE]"):
            self.done = True
            return []
        return self.feed(
            parse_json_object(payload, vendor=self._vendor, request_id=self._request_id)
        )

    def feed(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        """The events of one chunk. Raises `BackendError` for an error that the server reports."""
        if chunk.get("error"):
            _raise_error(chunk, self._vendor, self._request_id)
        choice = _choice(chunk)
        events: list[StreamEvent] = []
        if not self.model:
            self._identify(chunk)
        if choice:
            self._read_delta(_delta(choice), events)
            if reason := choice.get("finish_reason"):
                self.raw_finish_reason = str(reason)
        if reported := chunk.get("usage") or choice.get("usage"):
            usage = parse_usage(reported)
            if usage is not None:
                if usage.cached_tokens is None and "timings" in chunk:  # llama.cpp's
                    reused = as_count(as_mapping(chunk, "timings").get("cache_n"))
                    usage = usage.model_copy(update={"cached_tokens": reused})
                events.append(UsageReported(usage))
        for event in events:
            self._assembly.add(event)
        return events

    def finish(self) -> Finished:
        """The whole answer. Raises `BackendError` if nothing was said, or the server failed."""
        if failed := _FAILED.get(self.raw_finish_reason or ""):
            raise self._no_answer("the model's answer broke off", failed)
        reason = self._reason()
        message = self._message(reason)
        if not (message.parts or message.reasoning or message.tool_calls):
            why, vendor = self.raw_finish_reason, self._vendor
            raise empty_response_error(why, vendor=vendor, request_id=self._request_id)
        return Finished(
            Completion(
                message=message,
                finish_reason=reason,
                raw_finish_reason=self.raw_finish_reason,
                usage=self._assembly.usage,
                model=self.model,
                request_id=self._request_id,
            )
        )

    def _identify(self, chunk: Mapping[str, Any]) -> None:
        if model := _text(chunk.get("model")):
            self.model = model
            self._assembly.origin = Origin(vendor=self._vendor, model=model)
        known = (self._request_id, chunk.get("request_id"), chunk.get("id"))
        self._request_id = next((name for name in map(_text, known) if name), None)

    def _reason(self) -> FinishReason:
        if self.raw_finish_reason is None:
            reason = FinishReason.STOP
        else:
            reason = _REASONS.get(self.raw_finish_reason, FinishReason.OTHER)
        # Ollama and others say `stop` after tool calls.
        return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and self._calls else reason

    def _message(self, reason: FinishReason) -> Message:
        message = self._assembly.to_message(reason)
        if self._details:
            details = join_details(self._details)
            message = message.model_copy(update={"reasoning_details": details})
        return drop_incomplete_calls(message, reason)

    def _no_answer(self, what: str, verdict: tuple[ErrorKind, bool, str]) -> BackendError:
        kind, retryable, why = verdict
        return BackendError(
            f"{what}: {why}",
            kind=kind,
            vendor=self._vendor,
            code=self.raw_finish_reason,
            request_id=self._request_id,
            retryable=retryable,
        )

    def _read_delta(self, delta: Mapping[str, Any], events: list[StreamEvent]) -> None:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if reasoning and (text := _text(reasoning)):
            events.append(ReasoningDelta(text))
        if details := delta.get("reasoning_details"):
            self._details += as_list(details)
        content = delta.get("content") or delta.get("refusal")
        if content and (text := content if type(content) is str else _join(content)):
            events.append(TextDelta(text))
        if delta.get("tool_calls"):
            events.extend(self._fragment(as_mapping(item)) for item in _calls(delta))

    def _fragment(self, raw: Mapping[str, Any]) -> ToolCallDelta:
        function = as_mapping(raw, "function")
        index, sent_id, name = (
            as_count(raw.get("index")),
            _text(raw.get("id")),
            function.get("name"),
        )
        arguments = _arguments(function.get("arguments"))
        call = self._continue_call(index, sent_id, named=bool(name))
        if call is None:
            return self._open_call(index, sent_id, _text(name), arguments)
        fresh_name = None if call.named else _text(name) or None
        call.named = call.named or fresh_name is not None
        call.arguments.append(arguments)
        return ToolCallDelta(call.number, None, fresh_name, arguments)

    def _open_call(
        self, index: int | None, sent_id: str, name: str, arguments: str
    ) -> ToolCallDelta:
        call = _Open(len(self._calls), sent_id, bool(name), [arguments])
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        # A call must have an id that its result can name; older Ollama servers give none.
        return ToolCallDelta(call.number, sent_id or f"call_{new_id()}", name or None, arguments)

    def _continue_call(self, index: int | None, sent_id: str, *, named: bool) -> _Open | None:
        """The open call that a fragment belongs to; None if it opens one."""
        if index is not None:
            call = self._by_index.get(index)
            # Relays number every call 0: another id is another call.
            return None if call and sent_id and call.id and call.id != sent_id else call
        if sent_id:
            return next((call for call in self._calls if call.id == sent_id), None)
        last = self._calls[-1] if self._calls else None
        return None if last and named and is_object("".join(last.arguments)) else last


def _raise_error(chunk: Mapping[str, Any], vendor: str, request_id: str | None = None) -> None:
    if error := chunk.get("error"):
        raise error_from_stream(error, vendor=vendor, request_id=request_id)


def _choices(chunk: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [as_mapping(item) for item in as_list(chunk.get("choices"))]


def _choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first choice; that one alone is read when there are several."""
    for item in as_list(chunk.get("choices")):
        choice = as_mapping(item)
        if not choice.get("index"):
            return choice
    return {}


def _delta(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return as_mapping(choice.get("delta") or choice.get("message"))


def _calls(delta: Mapping[str, Any]) -> list[object]:
    return as_list(delta.get("tool_calls"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _join(content: object) -> str:
    """The text of content that came as a list of parts."""
    return "".join(
        part if isinstance(part, str) else _text(as_mapping(part).get("text"))
        for part in as_list(content)
    )


def _arguments(value: object) -> str:
    """The JSON text of arguments; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value).decode()
