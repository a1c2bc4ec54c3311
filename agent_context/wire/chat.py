"""Chat-completions answers, whole or in chunks, as every server writes them differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import (
    Completion,
    FinishReason,
    Message,
    Origin,
    Usage,
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
from agent_context.wire.call_fragments import CallAssembler, arguments_text, extra_fields
from agent_context.wire.completion_checks import (
    drop_incomplete_calls,
    empty_response_error,
    is_whole,
    later_usage,
    parse_json_object,
    reported_error,
)
from agent_context.wire.errors import error_from_stream
from agent_context.wire.lenient_json import as_count, as_list, as_mapping
from agent_context.wire.reasoning_details import join_details
from agent_context.wire.split_pairs import SplitPairs, mend_extra

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
    # OpenRouter (openrouter.ai/docs, 2026), vLLM and SGLang, for what failed behind them.
    "error": (ErrorKind.OVERLOADED, True, "its server failed"),
    "abort": (ErrorKind.OVERLOADED, True, "its server gave it up"),
}
"""Finish reasons of answers that are not whole, whatever has arrived: kind, retryable, why."""

_CUT = (ErrorKind.TRANSPORT, True, "it ends within a tool call, without a finish reason")


def parse_messages(response: Mapping[str, Any], *, vendor: str) -> tuple[Message, ...]:
    """The messages in a whole answer, one for each choice that says anything."""
    if error := reported_error(response, _choice(response)):
        raise error_from_stream(error, vendor=vendor)
    readers: list[ChunkReader] = []
    for choice in _choices(response):
        readers.append(ChunkReader(vendor))
        readers[-1].feed({**response, "choices": [{**choice, "index": 0}]})
    return tuple(reader.finish().completion.message for reader in readers if not reader.empty)


def parse_completion(
    response: Mapping[str, Any], *, vendor: str, request_id: str | None = None
) -> Completion:
    """The answer that a whole response is. Raises `BackendError` if it is none."""
    if not (reported_error(response, _choice(response)) or _choices(response)):
        why = f"the answer has no choices, only {sorted(response)}"
        raise BackendError(why, kind=ErrorKind.PROTOCOL, vendor=vendor, request_id=request_id)
    reader = ChunkReader(vendor, request_id)
    reader.feed(response)
    return reader.finish().completion


def parse_chunk(chunk: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
    """What one chunk says on its own; calls are numbered as the server numbers them."""
    choice = _choice(chunk)
    calls = [as_mapping(raw) for raw in _calls(_delta(choice))]
    events = ChunkReader("").feed(chunk)
    said = [event for event in events if isinstance(event, TextDelta | ReasoningDelta)]
    rest = [event for event in events if isinstance(event, UsageReported)]
    return (*said, *(_as_sent(place, raw) for place, raw in enumerate(calls)), *rest)


def _as_sent(place: int, raw: Mapping[str, Any]) -> ToolCallDelta:
    index, function = as_count(raw.get("index")), as_mapping(raw, "function")
    return ToolCallDelta(
        place if index is None else index,
        _text(raw.get("id")) or None,
        _text(function.get("name")) or None,
        arguments_text(function.get("arguments")),
        extra_fields(raw) or None,
    )


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


class ChunkReader:
    """Turns the chunks of one answer into events, and at the end into a completion.

    Takes what servers do: fields missing, null or repeated, calls without index or id, whole or in
    pieces, usage on any chunk. A whole response counts as one chunk.
    """

    def __init__(self, vendor: str, request_id: str | None = None) -> None:
        self.done = False
        """Whether the server said `[DONE]`."""
        self.whole = False
        """Whether the answer came in one piece, which needs no `[DONE]`."""
        self.model = ""
        self.raw_finish_reason: str | None = None
        self._vendor = vendor
        self._request_id = request_id
        self._assembly = StreamAccumulator(Origin(vendor=vendor))
        self._details: list[object] = []
        self._calls = CallAssembler()
        self._halves = SplitPairs()
        self._streamed = False

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
        if payload.strip().startswith(b"[DONE]"):
            self.done = True
            return []
        return self.feed(
            parse_json_object(payload, vendor=self._vendor, request_id=self._request_id)
        )

    def feed(self, chunk: Mapping[str, Any]) -> list[StreamEvent]:
        """The events of one chunk. Raises `BackendError` for an error that the server reports."""
        choice = _choice(chunk)
        if error := reported_error(chunk, choice):
            raise error_from_stream(error, vendor=self._vendor, request_id=self._request_id)
        events: list[StreamEvent] = []
        if not self.model:
            self._identify(chunk)
        if choice:
            self._read_choice(choice, events)
        if reported := chunk.get("usage") or choice.get("usage"):
            self._read_usage(reported, chunk, events)
        return events

    def finish(self) -> Finished:
        """The whole answer. Raises `BackendError` if nothing was said, or the server failed."""
        if failed := _FAILED.get(self.raw_finish_reason or ""):
            raise self._no_answer("the model's answer broke off", failed)
        for event in self._halves.rest():
            self._assembly.add(event)
        reason = self._reason()
        message = self._message(reason)
        if self.done and not self.finished and not all(map(is_whole, message.tool_calls)):
            raise self._no_answer("the model's answer broke off", _CUT)
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
        return (
            FinishReason.TOOL_CALLS if reason is FinishReason.STOP and self._calls.count else reason
        )

    def _message(self, reason: FinishReason) -> Message:
        message = self._assembly.to_message(reason)
        if self._details:
            details = join_details(self._details)
            message = message.model_copy(update={"reasoning_details": details})
        return mend_extra(drop_incomplete_calls(message, reason))

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

    def _read_usage(
        self, reported: object, chunk: Mapping[str, Any], events: list[StreamEvent]
    ) -> None:
        usage = parse_usage(reported)
        if usage is None:
            return
        if usage.cached_tokens is None and "timings" in chunk:  # llama.cpp's
            reused = as_count(as_mapping(chunk, "timings").get("cache_n"))
            usage = usage.model_copy(update={"cached_tokens": reused})
        self._emit(UsageReported(later_usage(self._assembly.usage, usage)), events)

    def _read_choice(self, choice: Mapping[str, Any], events: list[StreamEvent]) -> None:
        if delta := as_mapping(choice, "delta"):
            self._read_fragment(delta, events)
            self._streamed = True
        if message := as_mapping(choice, "message"):
            if self._streamed:
                self._read_rest(message, events)
            elif self.empty:
                self.whole = True
                self._read_whole(message, events)
            else:  # some servers call their fragments messages
                self.whole = False
                self._read_fragment(message, events)
        if reason := choice.get("finish_reason"):
            self.raw_finish_reason = str(reason)

    def _read_fragment(self, delta: Mapping[str, Any], events: list[StreamEvent]) -> None:
        self._say(_thought(delta), _content(delta), events)
        if details := delta.get("reasoning_details"):
            self._details += as_list(details)
        if delta.get("tool_calls"):
            self._read_calls(delta, self._calls.add, events)

    def _read_whole(self, message: Mapping[str, Any], events: list[StreamEvent]) -> None:
        self._say(_thought(message), _content(message), events)
        self._details += as_list(message.get("reasoning_details"))
        self._read_calls(message, self._calls.add_whole, events)

    def _read_rest(self, message: Mapping[str, Any], events: list[StreamEvent]) -> None:
        """What a whole message, at the end of its fragments, says beyond them."""
        sent = self._assembly.to_message()
        thought = _beyond(_thought(message), sent.reasoning or "")
        self._say(thought, _beyond(_content(message), sent.text), events)
        self._details = self._details or as_list(message.get("reasoning_details"))
        add = self._calls.add if self._calls.count else self._calls.add_whole
        self._read_calls(message, add, events)

    def _say(self, thought: str, text: str, events: list[StreamEvent]) -> None:
        if thought and (thought := self._halves.join("reasoning", thought)):
            self._emit(ReasoningDelta(thought), events)
        if text and (text := self._halves.join("text", text)):
            self._emit(TextDelta(text), events)

    def _read_calls(
        self,
        message: Mapping[str, Any],
        add: Callable[[Mapping[str, Any]], ToolCallDelta | None],
        events: list[StreamEvent],
    ) -> None:
        for item in _calls(message):
            if (event := add(as_mapping(item))) is not None:
                self._emit(self._halves.join_arguments(event), events)

    def _emit(self, event: StreamEvent, events: list[StreamEvent]) -> None:
        self._assembly.add(event)
        events.append(event)


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


def _thought(delta: Mapping[str, Any]) -> str:
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    return _text(reasoning) if reasoning else ""


def _content(delta: Mapping[str, Any]) -> str:
    content = delta.get("content") or delta.get("refusal")
    if not content:
        return ""
    return content if type(content) is str else _join(content)


def _beyond(whole: str, sent: str) -> str:
    """What a whole text has behind what was sent of it; nothing if it is another text."""
    return whole[len(sent) :] if whole.startswith(sent) else ""


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
