"""Answers of the Responses API, whole or in events.

Sources: openai 3.57 (2026-11) for the events; recorded streams of api.deepseek.com/responses
(2026-08) and openai-python's threads for what servers make of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message, Origin, Usage, new_id
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)
from agent_context.wire.call_fragments import arguments_text
from agent_context.wire.completion_checks import (
    drop_incomplete_calls,
    empty_response_error,
    later_usage,
    parse_json_object,
    reported_error,
)
from agent_context.wire.dialect import OUTPUT_ITEMS
from agent_context.wire.errors import error_from_stream
from agent_context.wire.lenient_json import as_count, as_list, as_mapping
from agent_context.wire.response_items import (
    PARAGRAPH,
    has_extra_content,
    item_texts,
    reasoning_parts,
)
from agent_context.wire.split_pairs import SplitPairs, mend_extra

__all__ = ["ResponsesReader", "parse_completion", "parse_event", "parse_usage"]

_REASONS = {
    "completed": FinishReason.STOP,
    "max_output_tokens": FinishReason.LENGTH,
    "content_filter": FinishReason.CONTENT_FILTER,
}
"""By the reason of an incomplete answer, else by its status. What isn't here is OTHER."""

_TEXT = {"response.output_text": "text", "response.refusal": "refusal"}
_THOUGHT = {
    "response.reasoning_text": "content",
    "response.reasoning_summary_text": "summary",
    # Their names before 2025-07, which some servers still use.
    "response.reasoning": "content",
    "response.reasoning_summary": "summary",
}
_ARGUMENTS = "response.function_call_arguments"
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_STARTS = frozenset({"response.created", "response.in_progress", "response.queued"})


def parse_completion(
    response: Mapping[str, Any], *, vendor: str, request_id: str | None = None
) -> Completion:
    """The answer that a whole response is. Raises `BackendError` if it is none."""
    if not response.get("error") and "output" not in response:
        why = f"the answer has no output, only {sorted(response)}"
        raise BackendError(why, kind=ErrorKind.PROTOCOL, vendor=vendor, request_id=request_id)
    reader = ResponsesReader(vendor, request_id)
    reader.feed(response)
    return reader.finish().completion


def parse_event(event: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
    """What one event says on its own; calls are numbered as the server numbers its items."""
    number = as_count(event.get("output_index")) or 0
    if event.get("type") == f"{_ARGUMENTS}.delta":
        return (ToolCallDelta(number, arguments=arguments_text(event.get("delta"))),)
    return tuple(
        ToolCallDelta(number, said.id, said.name, said.arguments)
        if isinstance(said, ToolCallDelta) and "output_index" in event
        else said
        for said in ResponsesReader("").feed(event)
    )


def parse_usage(raw: object) -> Usage | None:
    """The usage that a response reports; None if it reports none."""
    usage = as_mapping(raw)
    if not usage:
        return None
    read = as_mapping(usage, "input_tokens_details")
    written = as_mapping(usage, "output_tokens_details")
    return Usage(
        input_tokens=as_count(usage.get("input_tokens")),
        output_tokens=as_count(usage.get("output_tokens")),
        cached_tokens=as_count(read.get("cached_tokens")),
        cache_write_tokens=as_count(read.get("cache_write_tokens")),
        reasoning_tokens=as_count(written.get("reasoning_tokens")),
    )


@dataclass(slots=True, eq=False)
class _Item:
    """An item that is being written."""

    kind: str = ""
    """Its type, once that is known."""
    opened: bool = False
    """Whether the server has announced it."""
    number: int | None = None
    """Of a call: which of this answer."""
    call: tuple[str, str] = ("", "")
    """Of a call: its id as it was sent, and its name."""
    held: str = ""
    """Arguments of a call whose name is still to come."""
    raw: Mapping[str, Any] | None = None
    """The whole item, once it is done."""
    sent: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """How much of each part has become events, in characters."""


class ResponsesReader:
    """Turns the events of one answer into events of ours, and at the end into a completion.

    What is only said when an item is done, or at the very end, counts as much as deltas. A whole
    response counts as the last event.
    """

    def __init__(self, vendor: str, request_id: str | None = None) -> None:
        self.done = False
        """Whether the server said that its answer is complete, or that it will not be."""
        self.model = ""
        self.raw_finish_reason: str | None = None
        self._vendor: Final = vendor
        self._request_id = request_id
        self._assembly = StreamAccumulator(Origin(vendor=vendor))
        self._items: list[_Item] = []
        self._by_index: dict[int, _Item] = {}
        self._by_id: dict[str, _Item] = {}
        self._by_call: dict[str, _Item] = {}
        self._call_ids: set[str] = set()
        self._halves = SplitPairs()
        self._calls = 0
        self._last_text: _Item | None = None
        self._last_thought: tuple[_Item, str, int] | None = None

    @property
    def finished(self) -> bool:
        """Whether the end of the answer has been seen."""
        return self.done

    @property
    def whole(self) -> bool:
        """Whether an answer in one piece can be the whole one."""
        return self.done

    def read(self, payload: bytes) -> list[StreamEvent]:
        """The events of one `data` payload. `BackendError` for one that is no JSON object."""
        if payload.startswith(b"[DONE]"):  # some servers have it from chat completions
            return []
        return self.feed(
            parse_json_object(payload, vendor=self._vendor, request_id=self._request_id)
        )

    def feed(self, event: Mapping[str, Any]) -> list[StreamEvent]:
        """The events of one event. Raises `BackendError` for an error that the server reports."""
        events: list[StreamEvent] = []
        kind = _text(event.get("type"))
        stem, _, step = kind.rpartition(".")
        if error := _error_of(event, kind):
            raise self._failure(error)
        if stem in _TEXT:
            self._read_text(event, event.get(_TEXT[stem] if step == "done" else "delta"), events)
        elif stem in _THOUGHT:
            self._read_thought(event, _THOUGHT[stem], whole=step == "done", events=events)
        elif stem == _ARGUMENTS:
            whole = step == "done"
            text = arguments_text(event.get("arguments" if whole else "delta"))
            self._arguments(self._item(event, "function_call"), text, events, whole=whole)
        elif stem == "response.output_item":
            raw, done = as_mapping(event, "item"), step == "done"
            self._read_item(self._announced(event, raw, done=done), raw, events, done=done)
        elif kind in _STARTS:
            self._identify(as_mapping(event, "response"))
        elif kind in _ENDS:
            self._end(as_mapping(event, "response"), kind, events)
        elif not kind and "output" in event:
            self._end(event, "", events)
        for said in events:
            self._assembly.add(said)
        return events

    def finish(self) -> Finished:
        """The whole answer. Raises `BackendError` if nothing was said."""
        for said in self._halves.rest():
            self._assembly.add(said)
        reason = self._reason()
        message = drop_incomplete_calls(self._assembly.to_message(reason), reason)
        if not (message.parts or message.reasoning or message.tool_calls):
            why, vendor = self.raw_finish_reason, self._vendor
            raise empty_response_error(why, vendor=vendor, request_id=self._request_id)
        return Finished(
            Completion(
                message=self._with_items(message),
                finish_reason=reason,
                raw_finish_reason=self.raw_finish_reason,
                usage=self._assembly.usage,
                model=self.model,
                request_id=self._request_id,
            )
        )

    def _with_items(self, message: Message) -> Message:
        """The message with its items, if they say more than it does and are all there."""
        items = [item.raw for item in self._items if item.raw is not None]
        whole = self.raw_finish_reason == "completed" and len(items) == len(self._items)
        if not (whole and has_extra_content(items)):
            return message
        return mend_extra(message.model_copy(update={OUTPUT_ITEMS: items}))

    def _reason(self) -> FinishReason:
        if self.raw_finish_reason is None:
            reason = FinishReason.STOP
        else:
            reason = _REASONS.get(self.raw_finish_reason, FinishReason.OTHER)
        return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and self._calls else reason

    def _identify(self, response: Mapping[str, Any]) -> None:
        if model := _text(response.get("model")):
            self.model = model
            self._assembly.origin = Origin(vendor=self._vendor, model=model)
        self._request_id = self._request_id or _text(response.get("id")) or None

    def _failure(self, error: object) -> BackendError:
        fields = as_mapping(error)
        if fields.get("type") == "error":
            error = {name: value for name, value in fields.items() if name != "type"}
        return error_from_stream(error, vendor=self._vendor, request_id=self._request_id)

    def _end(self, response: Mapping[str, Any], kind: str, events: list[StreamEvent]) -> None:
        self._identify(response)
        status = _text(response.get("status")) or kind.removeprefix("response.")
        if response.get("error") or status == "failed":
            raise self._failure(response.get("error") or "the model failed, it doesn't say why")
        if status in {"queued", "in_progress", "cancelled"}:
            text = f"its answer is {status!r}, which is no end"
            raise BackendError(
                text, kind=ErrorKind.PROTOCOL, vendor=self._vendor, request_id=self._request_id
            )
        why = as_mapping(response, "incomplete_details").get("reason")
        self.raw_finish_reason = _text(why) or status or None
        self._read_output(as_list(response.get("output")), events)
        if (usage := parse_usage(response.get("usage"))) is not None:
            events.append(UsageReported(later_usage(self._assembly.usage, usage)))
        self.done = True

    def _read_output(self, output: list[object], events: list[StreamEvent]) -> None:
        """What the end repeats; of servers that send no items before, all there is."""
        announced = self._items.copy()
        for place, raw in enumerate(map(as_mapping, output)):
            item = self._named(raw) or self._at_place(place, raw, announced, len(output))
            if item is None and len(announced) < len(output):
                item = self._open_item(None, raw)
            if item is not None and item.raw is None:
                self._read_item(item, raw, events, done=True)

    def _at_place(
        self, place: int, raw: Mapping[str, Any], announced: list[_Item], count: int
    ) -> _Item | None:
        """The item that stands there; by its index, or if all are there by its order."""
        found = self._by_index.get(place) if len(self._by_index) == len(announced) else None
        if found is None and len(announced) == count:
            found = announced[place]
        return found if found and found.kind in {"", _text(raw.get("type"))} else None

    def _item(self, event: Mapping[str, Any], kind: str) -> _Item:
        """The item that a delta belongs to: by its id, else its index, else the last."""
        index, name = as_count(event.get("output_index")), _text(event.get("item_id"))
        found = self._by_id.get(name) if name else None
        if found is None and index is not None:
            found = self._by_index.get(index)
        elif found is None and not name and self._items:
            found = self._items[-1]
        if found is None or found.kind not in {"", kind}:
            found = self._open_item(index, {"id": name})
        elif name:
            self._by_id.setdefault(name, found)
        found.kind = kind
        return found

    def _named(self, raw: Mapping[str, Any]) -> _Item | None:
        """The item that has the id of this one, or is the same call."""
        kind, call = _text(raw.get("type")), _text(raw.get("call_id"))
        found = self._by_id.get(_text(raw.get("id")))
        if found is not None and found.kind in {"", kind} and found.call[0] in {"", call}:
            return found
        twin = self._by_call.get(call) if kind == "function_call" else None
        if twin is None or twin.call[1] != _text(raw.get("name")):
            return None
        return twin if twin.raw is None or _same_arguments(twin.raw, raw) else None

    def _announced(self, event: Mapping[str, Any], raw: Mapping[str, Any], *, done: bool) -> _Item:
        """The item that an event about whole items is about."""
        if (named := self._named(raw)) is not None:
            return named
        index = as_count(event.get("output_index"))
        if index is not None:
            found = self._by_index.get(index)
        else:
            found = self._items[-1] if self._items else None
        fits = found is not None and found.kind in {"", _text(raw.get("type"))}
        # Some servers number every item 0, others give an item another id each time.
        if found is None or not fits or found.raw is not None or (found.opened and not done):
            return self._open_item(index, raw)
        return found

    def _open_item(self, index: int | None, raw: Mapping[str, Any]) -> _Item:
        item = _Item()
        self._items.append(item)
        if index is not None:
            self._by_index[index] = item
        if name := _text(raw.get("id")):
            self._by_id[name] = item
        return item

    def _read_item(
        self, item: _Item, raw: Mapping[str, Any], events: list[StreamEvent], *, done: bool
    ) -> None:
        item.opened = True
        item.kind = _text(raw.get("type")) or item.kind
        if name := _text(raw.get("id")):
            self._by_id.setdefault(name, item)
        if item.kind == "function_call":
            self._read_call(item, raw, events)
        if done and item.raw is None:
            self._read_rest(item, raw, events)
            item.raw = raw

    def _read_rest(self, item: _Item, raw: Mapping[str, Any], events: list[StreamEvent]) -> None:
        """What was in no delta."""
        for index, text in enumerate(item_texts(raw)):
            self._say(item, index, text, events, whole=True)
        place, thoughts = reasoning_parts(raw)
        if all(sent_place == place for sent_place, _ in item.sent):
            for index, text in enumerate(thoughts):
                self._think(item, place, index, text, events, whole=True)

    def _read_call(self, item: _Item, raw: Mapping[str, Any], events: list[StreamEvent]) -> None:
        name = _text(raw.get("name"))
        if item.number is None and name:
            item.number = self._calls
            self._calls += 1
            sent = _text(raw.get("call_id")) or _text(raw.get("id"))
            item.call = sent, name
            self._by_call.setdefault(sent, item)
            events.append(ToolCallDelta(item.number, self._free_id(sent), name, item.held))
        self._arguments(item, arguments_text(raw.get("arguments")), events, whole=True)

    def _free_id(self, sent: str) -> str:
        """The id, or one of our own: a result must be able to name its call."""
        chosen = sent if sent and sent not in self._call_ids else f"call_{new_id()}"
        self._call_ids.add(chosen)
        return chosen

    def _arguments(self, item: _Item, text: str, events: list[StreamEvent], *, whole: bool) -> None:
        new = self._new(item, ("arguments", 0), text, whole=whole)
        if item.number is None:
            item.held += new  # its name is still to come
        elif new and (new := self._halves.join(item.number, new)):
            events.append(ToolCallDelta(item.number, arguments=new))

    def _read_text(self, event: Mapping[str, Any], text: object, events: list[StreamEvent]) -> None:
        index = as_count(event.get("content_index")) or 0
        whole = "delta" not in event
        self._say(self._item(event, "message"), index, _text(text), events, whole=whole)

    def _read_thought(
        self, event: Mapping[str, Any], place: str, *, whole: bool, events: list[StreamEvent]
    ) -> None:
        index = as_count(event.get(f"{place}_index")) or 0
        text = _text(event.get("text" if whole else "delta"))
        self._think(self._item(event, "reasoning"), place, index, text, events, whole=whole)

    def _say(
        self, item: _Item, index: int, text: str, events: list[StreamEvent], *, whole: bool
    ) -> None:
        new = self._new(item, ("text", index), text, whole=whole)
        if new and (new := self._halves.join("text", new)):
            apart = PARAGRAPH if self._last_text not in {None, item} else ""
            self._last_text = item
            events.append(TextDelta(apart + new))

    def _think(
        self,
        item: _Item,
        place: str,
        index: int,
        text: str,
        events: list[StreamEvent],
        *,
        whole: bool,
    ) -> None:
        new = self._new(item, (place, index), text, whole=whole)
        if new and (new := self._halves.join("reasoning", new)):
            here = (item, place, index)
            apart = PARAGRAPH if self._last_thought not in {None, here} else ""
            self._last_thought = here
            events.append(ReasoningDelta(apart + new))

    @staticmethod
    def _new(item: _Item, part: tuple[str, int], text: str, *, whole: bool) -> str:
        """What of `text` wasn't there yet: all of a delta, the rest of a whole."""
        sent = item.sent.get(part, 0)
        new = text[sent:] if whole else text
        item.sent[part] = sent + len(new)
        return new


def _error_of(event: Mapping[str, Any], kind: str) -> object:
    """The error that an event reports; None if it reports none, or is an answer's end."""
    if kind in _ENDS or (not kind and "output" in event):
        return None
    return event.get("error") if kind.startswith("response.") else reported_error(event, {})


def _same_arguments(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return arguments_text(one.get("arguments")) == arguments_text(other.get("arguments"))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
