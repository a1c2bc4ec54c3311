"""A history as messages of Anthropic's Messages API, with its cache breakpoints.

Sources: anthropic 2.14 (2026-11) for blocks; platform.claude.com, prompt caching and tool use
(2026-07): at most four breakpoints, all results of an answer's calls in one message behind it, no
empty texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import orjson

from agent_context._context.stored_message import StoredMessage
from agent_context.messages import Role
from agent_context.wire.dialect import CONTENT_BLOCKS, Dialect
from agent_context.wire.lenient_json import as_list, as_mapping
from agent_context.wire.names import function_name
from agent_context.wire.parts import chat_parts, is_supported, placeholder_text

__all__ = ["breakpoints", "render_messages", "system_blocks"]

_Block = dict[str, Any]
_DATA = re.compile(r"data:([^;,]+)(?:;[^;,]*)*;base64,(.*)", re.DOTALL)
_EMPTY: Final = "[empty]"
"""Stands for a text that says nothing: the API refuses one."""
_FIRST: Final = b'{"role":"user","content":"Continue."}'


def breakpoints(records: Sequence[StoredMessage]) -> tuple[int, ...]:
    """The indexes after which a request has cache breakpoints.

    They are where the request before it ended, which is in front of the last answer, and its own
    last message that isn't the model's.
    """
    asked = [index for index, record in enumerate(records) if record.role is not Role.ASSISTANT]
    answers = [index for index, record in enumerate(records) if record.role is Role.ASSISTANT]
    before = [index for index in asked if answers and index < answers[-1]]
    return tuple(dict.fromkeys((*before[-1:], *asked[-1:])))


def render_messages(
    records: Sequence[StoredMessage],
    dialect: Dialect,
    *,
    marks: Iterable[int] = (),
    first: bool = False,
) -> list[bytes]:
    """The message of each record; empty for the results that stand in an earlier one's message.

    `marks` are the indexes of the records after which the cache has a breakpoint. `first` says that
    nothing precedes them: the model does not begin.
    """
    marked = set(marks)
    pieces: list[bytes] = []
    results: list[_Block] = []
    opened = 0
    for index, record in enumerate(records):
        blocks = _blocks(record, dialect)
        if index in marked:
            blocks = _mark(blocks)
        if record.role is not Role.TOOL:
            results = []
            pieces.append(_message(record.role, blocks))
            continue
        opened = opened if results else index
        results += blocks
        pieces.append(b"")
        pieces[opened] = _message(Role.USER, results)
    if first and records and records[0].role is Role.ASSISTANT:
        pieces[0] = _FIRST + b"," + pieces[0]
    return pieces


def system_blocks(records: Iterable[StoredMessage], *, mark: _Block | None) -> list[_Block]:
    """The texts of system messages as the blocks of `system`, the last with a breakpoint."""
    blocks: list[_Block] = []
    for record in records:
        content = record.fields()["content"]
        texts = [content] if isinstance(content, str) else _texts(content)
        blocks += [{"type": "text", "text": text} for text in texts if text.strip()]
    if blocks and mark is not None:
        blocks[-1] = {**blocks[-1], "cache_control": mark}
    return blocks


def _message(role: Role, blocks: Sequence[_Block]) -> bytes:
    name = "assistant" if role is Role.ASSISTANT else "user"
    return orjson.dumps({"role": name, "content": blocks})


def _mark(blocks: list[_Block]) -> list[_Block]:
    return [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]


def _blocks(record: StoredMessage, dialect: Dialect) -> list[_Block]:
    fields = record.fields()
    match record.role:
        case Role.ASSISTANT:
            blocks = _own_blocks(fields, dialect) or _answer(fields)
        case Role.TOOL:
            content = _content(fields["content"], dialect)
            blocks = [
                {"type": "tool_result", "tool_use_id": fields["tool_call_id"], "content": content}
            ]
        case _:
            blocks = _content(fields["content"], dialect)
    return blocks or [{"type": "text", "text": _EMPTY}]


def _own_blocks(fields: Mapping[str, Any], dialect: Dialect) -> list[_Block]:
    """The blocks as they came, if this vendor sent them and nobody has edited the message."""
    blocks = [dict(as_mapping(block)) for block in as_list(fields.get(CONTENT_BLOCKS))]
    if not blocks or as_mapping(fields.get("origin")).get("vendor") != dialect.vendor:
        return []
    said = "".join(block.get("text") or "" for block in blocks if block.get("type") == "text")
    calls = [
        (block.get("id"), block.get("name"), block.get("input"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    same = said == "".join(_texts(fields["content"])) and calls == _calls(fields)
    return [block for block in blocks if block.get("type") != "text" or block.get("text")] * same


def _calls(fields: Mapping[str, Any]) -> list[tuple[Any, Any, Any]]:
    return [
        (call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"]))
        for call in fields.get("tool_calls") or ()
    ]


def _answer(fields: Mapping[str, Any]) -> list[_Block]:
    texts = [text for text in _texts(fields["content"]) if text.strip()]
    blocks: list[_Block] = [{"type": "text", "text": text} for text in texts]
    for call_id, name, given in _calls(fields):
        called = {"type": "tool_use", "id": call_id, "name": function_name(name), "input": given}
        blocks.append(called)
    return blocks


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in chat_parts(content) if part["type"] == "text"]


def _content(content: object, dialect: Dialect) -> list[_Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return [_part(part, dialect) for part in chat_parts(content)]


def _part(part: Mapping[str, Any], dialect: Dialect) -> _Block:
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    if kind == "image_url" and is_supported(part, dialect):
        return {"type": "image", "source": _source(str(as_mapping(part, "image_url").get("url")))}
    if kind == "file" and is_supported(part, dialect):
        file = as_mapping(part, "file")
        data = str(file.get("file_data") or file.get("file_url") or "")
        if data.startswith(("data:application/pdf", "http")):
            title = {"title": file["filename"]} if file.get("filename") else {}
            return {"type": "document", "source": _source(data), **title}
    return {"type": "text", "text": placeholder_text(cast("dict[str, Any]", part))}


def _source(url: str) -> _Block:
    if (found := _DATA.match(url)) is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": found.group(1), "data": found.group(2)}
