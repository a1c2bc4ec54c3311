"""A message as items of the Responses API, and what such items say.

Sources: openai 3.57 (2026-11) for their types and order; deepseek-recipe 0.2.0 (2026-11) and
recorded answers of api.deepseek.com/responses (2026-08) for reasoning as text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import orjson

from agent_context._context.stored_message import StoredMessage
from agent_context.messages import Role
from agent_context.wire.call_fragments import arguments_text
from agent_context.wire.dialect import OUTPUT_ITEMS, Dialect
from agent_context.wire.lenient_json import as_list, as_mapping
from agent_context.wire.names import function_name
from agent_context.wire.parts import chat_parts, is_supported, placeholder_text

__all__ = ["PARAGRAPH", "has_extra_content", "item_texts", "reasoning_parts", "render_items"]

PARAGRAPH = "\n\n"
"""Stands between the texts of two items, and between two thoughts, where they become one text."""

_NO_THOUGHT = " "
"""DeepSeek wants reasoning with calls, and takes an empty one for none (deepseek-recipe 0.2.0)."""

_CALL = frozenset({"type", "id", "status", "call_id", "name", "arguments"})

_Item = Mapping[str, Any]


def item_texts(item: _Item) -> list[str]:
    """The texts of a message's parts, refusals too, in order; of any other item none."""
    if item.get("type") != "message":
        return []
    parts = map(as_mapping, as_list(item.get("content")))
    return [_text(part.get("text") or part.get("refusal")) for part in parts]


def reasoning_parts(item: _Item) -> tuple[str, list[str]]:
    """Where the thoughts of a reasoning item are, and what they are: in full, or as a summary."""
    if item.get("type") != "reasoning":
        return "content", []
    for place in ("content", "summary"):
        parts = map(as_mapping, as_list(item.get(place)))
        if any(thoughts := [_text(part.get("text")) for part in parts]):
            return place, thoughts
    return "content", []


def has_extra_content(items: Iterable[_Item]) -> bool:
    """Whether they hold more than the fields of a message do."""
    return any(
        item.get("type") not in {"message", "function_call"}
        or item.get("phase")
        or (_is_call(item) and item.keys() - _CALL)
        for item in items
    )


def render_items(record: StoredMessage, dialect: Dialect) -> bytes:
    """The items with commas between; of a plain message it is the stored bytes as they lie."""
    fields = record.fields()
    plain = fields.keys() == {"role", "content"} and isinstance(fields["content"], str)
    if plain and (record.role is not Role.SYSTEM or dialect.system_role == fields["role"]):
        return record.body
    return b",".join(map(orjson.dumps, _items(fields, record.role, dialect)))


def _items(fields: dict[str, Any], role: Role, dialect: Dialect) -> Sequence[_Item]:
    content = fields["content"]
    match role:
        case Role.SYSTEM:
            return [{"role": dialect.system_role, "content": _words(content)}]
        case Role.USER:
            return [{"role": "user", "content": _content(content, dialect)}]
        case Role.TOOL:
            call_id, output = fields["tool_call_id"], _words(content, apart=PARAGRAPH)
            return [{"type": "function_call_output", "call_id": call_id, "output": output}]
        case Role.ASSISTANT:
            own = as_mapping(fields, "origin").get("vendor") == dialect.vendor
            sent = [as_mapping(item) for item in as_list(fields.get(OUTPUT_ITEMS))]
            if own and sent and _may_return(sent, dialect) and _says_the_same(sent, fields):
                return _put_back(sent, fields.get("tool_calls", ()), dialect)
            return _rewrite(fields, dialect, own=own)


def _may_return(items: Sequence[_Item], dialect: Dialect) -> bool:
    """Whether the server can read all reasoning: nothing of it is stored there."""
    if (
        dialect.backfill_reasoning
        and any(map(_is_call, items))
        and not reasoning_parts(items[0])[1]
    ):
        return False  # DeepSeek refuses calls that it hasn't thought about first
    return all(
        item.get("encrypted_content") or (dialect.keep_reasoning and reasoning_parts(item)[1])
        for item in items
        if item.get("type") == "reasoning"
    )


def _says_the_same(items: Sequence[_Item], fields: Mapping[str, Any]) -> bool:
    """Whether the message is still what its items say. Ids of calls are none of it."""
    called = [
        (item.get("name"), arguments_text(item.get("arguments")))
        for item in items
        if _is_call(item)
    ]
    functions = [as_mapping(call, "function") for call in fields.get("tool_calls", ())]
    if called != [(function["name"], function["arguments"]) for function in functions]:
        return False
    texts = PARAGRAPH.join(filter(None, map("".join, map(item_texts, items))))
    reasoning = fields.get("reasoning") or ""
    thoughts = [thought for item in items for thought in reasoning_parts(item)[1]]
    return texts == _words(fields["content"]) and all(one in reasoning for one in thoughts)


def _put_back(
    items: Sequence[_Item], calls: Iterable[Mapping[str, Any]], dialect: Dialect
) -> list[_Item]:
    """The items unchanged and in place, but for ids of calls that the request can't have."""
    ids = iter([call["id"] for call in calls])
    named = [_with_id(item, next(ids)) if _is_call(item) else item for item in items]
    while named and named[-1].get("type") == "reasoning":
        named.pop()  # reasoning is refused unless something follows that it led to
    return sorted(named, key=_is_call) if dialect.calls_last else named


def _with_id(item: _Item, call_id: str) -> _Item:
    if item.get("call_id") == call_id and isinstance(item.get("arguments"), str):
        return item
    return {**item, "call_id": call_id, "arguments": arguments_text(item.get("arguments"))}


def _is_call(item: _Item) -> bool:
    return item.get("type") == "function_call"


def _rewrite(fields: Mapping[str, Any], dialect: Dialect, *, own: bool) -> list[_Item]:
    calls = cast("Sequence[dict[str, Any]]", fields.get("tool_calls", ()))
    thought = fields.get("reasoning") if own and dialect.keep_reasoning else None
    if not thought and calls and dialect.backfill_reasoning:
        thought = _NO_THOUGHT
    items: list[_Item] = []
    if thought:
        content = [{"type": "reasoning_text", "text": thought}]
        items.append({"type": "reasoning", "summary": [], "content": content})
    if (text := _words(fields["content"])).strip():
        items.append({"role": "assistant", "content": text})
    return items + [_call(call) for call in calls]


def _call(call: Mapping[str, Any]) -> _Item:
    function = call["function"]
    return {
        "type": "function_call",
        "call_id": call["id"],
        "name": function_name(function["name"]),
        "arguments": function["arguments"],
    }


def _words(content: object, *, apart: str = "") -> str:
    """Content as text; what isn't text is named."""
    if isinstance(content, str):
        return content
    return apart.join(map(_word, chat_parts(content)))


def _word(part: Mapping[str, Any]) -> str:
    kind = _text(part.get("type"))
    return _text(part.get("text")) if kind == "text" else f"[{kind.removesuffix('_url')}]"


def _content(content: object, dialect: Dialect) -> object:
    if isinstance(content, str):
        return content
    return [_part(part, dialect) for part in chat_parts(content)] or ""


_SENT = ("image_url", "file")


def _part(part: Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any]:
    kind = part.get("type")
    if kind == "text":
        return {"type": "input_text", "text": _text(part.get("text"))}
    if kind not in _SENT or not is_supported(part, dialect):
        return {"type": "input_text", "text": placeholder_text(part)}
    if kind == "image_url":
        image = as_mapping(part, "image_url")
        url, detail = image.get("url"), image.get("detail") or "auto"
        return {"type": "input_image", "image_url": url, "detail": detail}
    return {"type": "input_file", **as_mapping(part, "file")}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
