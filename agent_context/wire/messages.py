"""Answers of Anthropic's Messages API, whole or in events.

Source: anthropic 2.14 (2026-11) for blocks, deltas, stop reasons and usage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message, Origin, Usage
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
    parse_json_object,
    reported_error,
)
from agent_context.wire.dialect import CONTENT_BLOCKS
from agent_context.wire.errors import error_from_stream
from agent_context.wire.lenient_json import as_count, as_list, as_mapping
from agent_context.wire.split_pairs import SplitPairs, mend_extra

__all__ = ["MessagesReader", "parse_completion", "parse_event", "parse_usage"]

_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "tool_use": FinishReason.TOOL_CALLS,
    "max_tokens": FinishReason.LENGTH,
    "refusal": FinishReason.CONTENT_FILTER,
}
"""What isn't here is OTHER."""

_WINDOW_FULL = "model_context_window_exceeded"
_PARAGRAPH = "\n\n"
_FIELDS = {"text": "text", "thinking": "thinking", "signature": "signature"}
_PLAIN = frozenset({"text", "tool_use"})


def parse_completion(
    response: Mapping[str, Any], *, vendor: str, request_id: str | None = None
) -> Completion:
    """The answer that a whole message is. Raises `BackendError` if it is none."""
    reader = MessagesReader(vendor, request_id)
    reader.feed(response)
    if not reader.done:
        why = f"the answer has no content, only {sorted(response)}"
        raise BackendError(why, kind=ErrorKind.PROTOCOL, vendor=vendor, request_id=request_id)
    return reader.finish().completion


def parse_event(event: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
    """What one event says on its own; calls are numbered as the server numbers its blocks."""
    number = as_count(event.get("index")) or 0
    delta = as_mapping(event, "delta")
    if delta.get("type") == "input_json_delta":
        return (ToolCallDelta(number, arguments=_text(delta.get("partial_json"))),)
    return tuple(
        ToolCallDelta(number, said.id, said.name, said.arguments)
        if isinstance(said, ToolCallDelta)
        else said
        for said in MessagesReader("").feed(event)
    )


def parse_usage(raw: object) -> Usage | None:
    """The usage that a message reports, what was read from the cache included; None if none is."""
    usage = as_mapping(raw)
    if not usage:
        return None
    fresh = as_count(usage.get("input_tokens"))
    read = as_count(usage.get("cache_read_input_tokens"))
    written = as_count(usage.get("cache_creation_input_tokens"))
    parts = [count for count in (fresh, read, written) if count is not None]
    return Usage(
        input_tokens=sum(parts) if parts else None,
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=as_count(
            as_mapping(usage, "output_tokens_details").get("thinking_tokens")
        ),
    )


@dataclass(slots=True, eq=False)
class _Block:
    """A content block that is being written."""

    raw: dict[str, Any]
    """As it was announced."""
    parts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """What deltas have added, by field."""
    arguments: list[str] = field(default_factory=list[str])
    call: int | None = None
    """Which call of this answer."""
    whole: bool = False

    @property
    def kind(self) -> str:
        return _text(self.raw.get("type"))

    def finish(self) -> dict[str, Any]:
        """The block as it would stand in a whole answer."""
        said: dict[str, object] = {
            name: _text(self.raw.get(name)) + "".join(parts) for name, parts in self.parts.items()
        }
        if self.arguments:
            said["input"] = _object("".join(self.arguments))
        return {**self.raw, **said}


class MessagesReader:
    """Turns the events of one answer into events of ours, and at the end into a completion.

    A whole message counts as all events at once.
    """

    def __init__(self, vendor: str, request_id: str | None = None) -> None:
        self.done = False
        """Whether the server said that its answer is complete."""
        self.model = ""
        self.raw_finish_reason: str | None = None
        self._vendor: Final = vendor
        self._request_id = request_id
        self._assembly = StreamAccumulator(Origin(vendor=vendor))
        self._blocks: dict[int, _Block] = {}
        self._halves = SplitPairs()
        self._usage: dict[str, Any] = {}
        self._calls = 0

    @property
    def finished(self) -> bool:
        """Whether the end of the answer has been seen."""
        return self.done or self.raw_finish_reason is not None

    @property
    def whole(self) -> bool:
        """Whether an answer in one piece can be the whole one."""
        return self.done

    def read(self, payload: bytes) -> list[StreamEvent]:
        """The events of one `data` payload. `BackendError` for one that is no JSON object."""
        if payload.startswith(b"[DONE]"):
            return []
        return self.feed(
            parse_json_object(payload, vendor=self._vendor, request_id=self._request_id)
        )

    def feed(self, event: Mapping[str, Any]) -> list[StreamEvent]:
        """The events of one event. Raises `BackendError` for an error that the server reports."""
        events: list[StreamEvent] = []
        kind, index = _text(event.get("type")), as_count(event.get("index")) or 0
        # Of an event of a known type a `message` is what was said, and no complaint.
        error = event.get("error") if kind not in {"", "error"} else reported_error(event, {})
        if error:
            raise self._failure(error)
        match kind:
            case "message":
                self._read_whole(event, events)
            case "message_start":
                self._identify(as_mapping(event, "message"))
                self._count(as_mapping(event, "message").get("usage"))
            case "content_block_start":
                self._open(index, as_mapping(event, "content_block"), events)
            case "content_block_delta":
                self._read_delta(index, as_mapping(event, "delta"), events)
            case "content_block_stop" if index in self._blocks:
                self._close(self._blocks[index], events)
            case "message_delta":
                reason = as_mapping(event, "delta").get("stop_reason")
                self.raw_finish_reason = _text(reason) or self.raw_finish_reason
                self._count(event.get("usage"))
                self._report(events)
            case "message_stop":
                self.done = True
            case _:
                pass  # a ping, or what was added since
        for said in events:
            self._assembly.add(said)
        return events

    def finish(self) -> Finished:
        """The whole answer. Raises `BackendError` if nothing was said, or the window is full."""
        for said in self._halves.rest():
            self._assembly.add(said)
        if self.raw_finish_reason == _WINDOW_FULL:
            raise empty_response_error(
                _WINDOW_FULL, vendor=self._vendor, request_id=self._request_id
            )
        reason = self._reason()
        message = drop_incomplete_calls(self._assembly.to_message(reason), reason)
        if not all(call.name for call in message.tool_calls):
            raise self._failure("a call of its answer has no name")
        if not (message.parts or message.reasoning or message.tool_calls):
            raise empty_response_error(
                self.raw_finish_reason, vendor=self._vendor, request_id=self._request_id
            )
        return Finished(
            Completion(
                message=self._with_blocks(message, reason),
                finish_reason=reason,
                raw_finish_reason=self.raw_finish_reason,
                usage=self._assembly.usage,
                model=self.model,
                request_id=self._request_id,
            )
        )

    def _reason(self) -> FinishReason:
        if self.raw_finish_reason is None:
            return FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP
        return _REASONS.get(self.raw_finish_reason, FinishReason.OTHER)

    def _with_blocks(self, message: Message, reason: FinishReason) -> Message:
        """The message with its blocks, if they say more than it does and are all there."""
        blocks = [block for _, block in sorted(self._blocks.items())]
        more = any(block.kind not in _PLAIN or block.raw.get("citations") for block in blocks)
        ended = reason in {FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.OTHER}
        if not (more and ended and all(block.whole for block in blocks)):
            return message
        said = [block.finish() for block in blocks]
        return mend_extra(message.model_copy(update={CONTENT_BLOCKS: said}))

    def _identify(self, message: Mapping[str, Any]) -> None:
        if model := _text(message.get("model")):
            self.model = model
            self._assembly.origin = Origin(vendor=self._vendor, model=model)
        self._request_id = self._request_id or _text(message.get("id")) or None

    def _failure(self, error: object) -> BackendError:
        fields = as_mapping(error)
        inner = fields.get("error") if fields.get("type") == "error" else error
        return error_from_stream(inner or error, vendor=self._vendor, request_id=self._request_id)

    def _count(self, raw: object) -> None:
        """Later figures are of the whole answer; those that are missing stand as they were."""
        self._usage |= {n: count for n, count in as_mapping(raw).items() if count is not None}

    def _report(self, events: list[StreamEvent]) -> None:
        if (usage := parse_usage(self._usage)) is not None:
            events.append(UsageReported(usage))

    def _read_whole(self, message: Mapping[str, Any], events: list[StreamEvent]) -> None:
        if "content" not in message:
            return
        self._identify(message)
        for index, block in enumerate(map(as_mapping, as_list(message.get("content")))):
            self._open(index, block, events)
            self._close(self._blocks[index], events)
        self.raw_finish_reason = _text(message.get("stop_reason")) or None
        self._count(message.get("usage"))
        self._report(events)
        self.done = True

    def _open(self, index: int, raw: Mapping[str, Any], events: list[StreamEvent]) -> None:
        known = self._blocks.get(index)
        if (
            known is not None
            and known.raw.get("id") == raw.get("id")
            and known.kind == raw.get("type")
        ):
            return  # announced twice
        block = self._blocks[index] = _Block(dict(raw))
        match block.kind:
            case "text":
                self._tell(TextDelta, "text", raw.get("text"), events)
            case "thinking":
                if any(
                    other.kind == "thinking"
                    for other in self._blocks.values()
                    if other is not block
                ):
                    events.append(ReasoningDelta(_PARAGRAPH))
                self._tell(ReasoningDelta, "thought", raw.get("thinking"), events)
            case "tool_use":
                block.call, self._calls = self._calls, self._calls + 1
                given = raw.get("input")
                text = orjson.dumps(given).decode() if given else ""
                name, call_id = _text(raw.get("name")), _text(raw.get("id"))
                events.append(ToolCallDelta(block.call, call_id, name, text))
            case _:
                pass  # the server's own tools and what they found: kept, and sent back

    def _read_delta(self, index: int, delta: Mapping[str, Any], events: list[StreamEvent]) -> None:
        block = self._blocks.get(index)
        if block is None:  # its beginning was lost
            guess = "thinking" if delta.get("type") == "thinking_delta" else "text"
            self._open(index, {"type": guess}, events)
            block = self._blocks[index]
        match _text(delta.get("type")):
            case "text_delta":
                self._add(block, "text", delta.get("text"))
                self._tell(TextDelta, "text", delta.get("text"), events)
            case "thinking_delta":
                self._add(block, "thinking", delta.get("thinking"))
                self._tell(ReasoningDelta, "thought", delta.get("thinking"), events)
            case "signature_delta":
                self._add(block, "signature", delta.get("signature"))
            case "input_json_delta":
                part = _text(delta.get("partial_json"))
                block.arguments.append(part)
                if block.call is not None and part:
                    said = ToolCallDelta(block.call, arguments=part)
                    events.append(self._halves.join_arguments(said))
            case "citations_delta":
                block.raw["citations"] = [*as_list(block.raw.get("citations")), delta["citation"]]
            case _:
                pass

    def _close(self, block: _Block, events: list[StreamEvent]) -> None:
        block.whole = True
        if block.call is not None and not (block.raw.get("input") or any(block.arguments)):
            events.append(ToolCallDelta(block.call, arguments="{}"))

    def _add(self, block: _Block, name: str, text: object) -> None:
        block.parts.setdefault(name, []).append(_text(text))

    def _tell(
        self,
        kind: type[TextDelta | ReasoningDelta],
        channel: str,
        text: object,
        events: list[StreamEvent],
    ) -> None:
        if said := self._halves.join(channel, _text(text)):
            events.append(kind(said))


def _object(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
