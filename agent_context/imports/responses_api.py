"""Messages from items of the Responses API, as a program keeps them that sends them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from agent_context.errors import BackendError, InvalidMessage
from agent_context.imports.result import Rejected, raw_of
from agent_context.messages import Message
from agent_context.wire.lenient_json import as_list, as_mapping
from agent_context.wire.responses import parse_completion

__all__ = ["Row", "messages_from"]

Row = tuple[str, Mapping[str, Any], datetime | None]
"""Where an item was found, the item, and when it was written."""

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


def messages_from(
    rows: Iterable[Row], vendor: str
) -> Iterator[tuple[Message, datetime | None] | Rejected]:
    """The messages, with their times. Neighbouring items of the model become one of them.

    `vendor` is where the model's items came from.
    """
    answer: list[Row] = []
    for row in rows:
        if _is_answer(row[1]):
            answer.append(row)
            continue
        yield from _filter_answered(answer, vendor)
        answer = []
        yield _field(row)
    yield from _filter_answered(answer, vendor)


def _kind(item: Mapping[str, Any]) -> str:
    return str(item.get("type") or ("message" if "role" in item else ""))


def _is_answer(item: Mapping[str, Any]) -> bool:
    kind = _kind(item)
    return kind in _ANSWERS and (kind != "message" or item.get("role") == "assistant")


def _filter_answered(
    rows: list[Row], vendor: str
) -> Iterator[tuple[Message, datetime | None] | Rejected]:
    if not rows:
        return
    items = [_stored_answer(item) for _, item, _ in rows]
    models = [as_mapping(item, "provider_data").get("model") for _, item, _ in rows]
    model = next((name for name in reversed(models) if isinstance(name, str)), "")
    try:
        answer = parse_completion(
            {"model": model, "status": "completed", "output": items}, vendor=vendor
        )
        yield answer.message, rows[-1][2]
    except (BackendError, InvalidMessage) as error:
        for where, item, _ in rows:
            yield Rejected(where, raw_of(item), str(error))


def _stored_answer(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item as a server writes it: what the program noted on it is left out."""
    sent = {name: value for name, value in item.items() if name != "provider_data"}
    if _kind(item) == "message":
        sent["type"] = "message"
        if isinstance(content := item.get("content"), str):
            sent["content"] = [{"type": "output_text", "text": content, "annotations": []}]
    return sent


def _field(row: Row) -> tuple[Message, datetime | None] | Rejected:
    where, item, time = row
    try:
        match _kind(item):
            case "message":
                fields = {"role": item.get("role"), "content": _content(item.get("content"))}
                return Message.model_validate(fields), time
            case "function_call_output":
                name, content = item.get("call_id"), _content(item.get("output"))
                fields = {"role": "tool", "tool_call_id": name, "content": content}
                return Message.model_validate(fields), time
            case kind:
                why = f"items of the kind {kind!r} have no place in a conversation"
    except InvalidMessage as error:
        why = str(error)
    return Rejected(where, raw_of(item), why)


def _content(content: object) -> object:
    return [_part(part) for part in as_list(content)] or content


def _part(part: object) -> object:
    """A part of an item's content as the chat-completions wire has it."""
    match dict(as_mapping(part)):
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url), **rest}:
            image = {"url": url, "detail": rest.get("detail") or "auto"}
            return {"type": "image_url", "image_url": image}
        case {"type": "input_image", **rest}:
            return {"type": "text", "text": f"[image {rest.get('file_id', '')}]"}
        case {"type": "input_file", **rest}:
            return {"type": "file", "file": rest}
        case _:
            return part
