"""Messages from items of the Responses API, as a program keeps them that sends them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from agent_context.errors import BackendError, InvalidMessage
from agent_context.imports.chat_form import (
    ROLES,
    ChatReader,
    joined_text,
    to_arguments,
    to_chat_part,
)
from agent_context.imports.result import Rejected, raw_of
from agent_context.messages import Message
from agent_context.wire.lenient_json import as_list, as_mapping
from agent_context.wire.responses import parse_completion

__all__ = ["Row", "messages_from"]

Row = tuple[str, Mapping[str, Any], datetime | None]
"""Where an item was found, the item, and when it was written."""


class _Item(NamedTuple):
    """A row, with the item as the API has it beside the one that was found."""

    where: str
    item: Mapping[str, Any]
    time: datetime | None
    found: Mapping[str, Any]

    def reject(self, why: str) -> Rejected:
        return Rejected(self.where, raw_of(self.found), why)


_ANSWERS = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "function_call",
        "message",
        "reasoning",
        "web_search_call",
    }
)
"""Kinds of items that make up an assistant's message, and can be sent again as they are."""

_CALLS: Final[Mapping[str, tuple[str, str]]] = {
    "function_call": ("", "arguments"),
    "custom_tool_call": ("", "input"),
    "local_shell_call": ("local_shell", "action"),
}
"""Kinds of items that call a tool of the program: the tool's name if they have none, and where the
arguments are."""

_CHAT_ONLY: Final = frozenset(
    {"tool_calls", "function_call", "reasoning", "reasoning_content", "finish_reason"}
)
"""Fields of an answer in chat-completions form, which some programs keep among items."""

_CHAT_FIELDS: Final = _CHAT_ONLY | {"role", "content", "name", "tool_call_id"}

_RESULTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output"}
)


def messages_from(
    rows: Iterable[Row], vendor: str
) -> Iterator[tuple[Message, datetime | None] | Rejected]:
    """The messages, with their times. Neighbouring items of the model become one of them.

    `vendor` is where the model's items came from.
    """
    answer: list[_Item] = []
    reader = ChatReader()
    for where, found, time in rows:
        row = _Item(where, _mend(found), time, found)
        if _is_answer(row.item):
            answer.append(row)
            continue
        yield from _filter_answered(answer, vendor)
        answer = []
        yield _field(row, reader)
    yield from _filter_answered(answer, vendor)


def _mend(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """The item as the API has it, where a program wrote it in another way."""
    mended = dict(item)
    if isinstance(role := item.get("role"), str):
        mended["role"] = ROLES.get(role.strip().lower(), role)
    for name in ("id", "call_id"):
        if isinstance(value := item.get(name), int):
            mended[name] = str(value)
        elif name in item and not isinstance(value, str):
            del mended[name]
    kind = _kind(mended)
    if kind in _CALLS:
        name, arguments = _CALLS[kind]
        raw = item.get(arguments)
        is_text = kind == "custom_tool_call" and isinstance(raw, str)
        mended |= {
            "type": "function_call",
            "name": item.get("name") or name,
            "arguments": to_arguments({"input": raw} if is_text else raw),
        }
        mended["call_id"] = mended.get("call_id") or mended.get("id") or ""
    elif kind in _RESULTS and mended.get("call_id"):
        mended["type"] = "function_call_output"
    elif kind == "reasoning":
        mended |= _reasoning(item)
    return mended


def _reasoning(item: Mapping[str, Any]) -> dict[str, Any]:
    """The lists of a reasoning item, where it has its words in other forms."""
    lists: dict[str, Any] = {}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        value = item.get(name)
        parts = as_list(value)
        if not parts or not all(as_mapping(part).get("type") for part in parts):
            text = joined_text(value)
            lists[name] = [{"type": kind, "text": text}] if text else []
    if not lists.get("content") and "content" not in item:
        lists.pop("content", None)
    loose = joined_text(item.get("text") or item.get("reasoning"))
    if loose and not (joined_text(item.get("summary")) or joined_text(item.get("content"))):
        lists["summary"] = [{"type": "summary_text", "text": loose}]
    return lists


def _kind(item: Mapping[str, Any]) -> str:
    return str(item.get("type") or ("message" if "role" in item else ""))


def _is_answer(item: Mapping[str, Any]) -> bool:
    kind = _kind(item)
    if kind != "message":
        return kind in _ANSWERS
    return item.get("role") == "assistant" and _CHAT_ONLY.isdisjoint(item)


def _filter_answered(
    rows: list[_Item], vendor: str
) -> Iterator[tuple[Message, datetime | None] | Rejected]:
    if not rows:
        return
    items = [_stored_answer(row.item) for row in rows]
    models = [as_mapping(row.item, "provider_data").get("model") for row in rows]
    model = next((name for name in reversed(models) if isinstance(name, str)), "")
    try:
        answer = parse_completion(
            {"model": model, "status": "completed", "output": items}, vendor=vendor
        )
        yield answer.message, rows[-1].time
    except (BackendError, InvalidMessage) as error:
        for row in rows:
            yield row.reject(str(error))


def _stored_answer(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item as a server writes it: what the program noted on it is left out."""
    sent = {name: value for name, value in item.items() if name != "provider_data"}
    if _kind(item) == "message":
        sent["type"] = "message"
        if isinstance(content := item.get("content"), str):
            sent["content"] = [{"type": "output_text", "text": content, "annotations": []}]
    return sent


def _field(row: _Item, reader: ChatReader) -> tuple[Message, datetime | None] | Rejected:
    item, time = row.item, row.time
    try:
        match _kind(item):
            case "message":
                fields = {name: value for name, value in item.items() if name in _CHAT_FIELDS}
                fields["content"] = _content(item.get("content"))
                return reader.read(fields).message, time
            case "function_call_output":
                name, content = item.get("call_id"), _output(item.get("output"))
                fields = {"role": "tool", "tool_call_id": name, "content": content}
                return Message.model_validate(fields), time
            case kind:
                why = f"items of the kind {kind!r} have no place in a conversation"
    except InvalidMessage as error:
        why = str(error)
    return row.reject(why)


def _content(content: object) -> object:
    return [to_chat_part(part) for part in as_list(content)] or content


def _output(output: object) -> object:
    """What a tool returned: a text or parts; of a program's own object the text that it holds."""
    if (fields := as_mapping(output)) and "type" not in fields:
        found: object = fields.get("content", fields.get("output"))
        is_said = isinstance(found, str) or as_list(found)
        output = found if is_said else raw_of(output).decode()
    return _content(output)
