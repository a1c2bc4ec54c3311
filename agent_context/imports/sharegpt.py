"""Conversations as data sets have them: ShareGPT's form, and lists of chat-completions messages.

Source: the data sets of the Hugging Face hub that name the form ShareGPT, and the fields that
LLaMA-Factory (data/README.md, 2026) and Axolotl read of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from agent_context._context.stored_message import StoredMessage, StoredMessages
from agent_context.errors import InvalidMessage
from agent_context.imports.chat_form import ROLES, ChatReader, to_arguments
from agent_context.imports.export_archive import items_of, texts_in
from agent_context.imports.lenient_jsonl import objects_in
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    parse_timestamp,
    raw_of,
    with_own_ids,
)
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["conversation_of", "is_said", "is_sharegpt", "read_sharegpt"]

_LISTS: Final = ("conversations", "conversation", "messages", "items", "turns")
"""Where an object has what was said."""
_CALLS: Final = frozenset({"function_call", "tool_call", "function-call"})
_SPEAKER: Final = ("from", "role", "speaker", "user")
_WORDS: Final = ("value", "content", "text", "message")


def read_sharegpt(path: str | os.PathLike[str]) -> ImportResult:
    """The conversations of a file, an object each; or the one that a list of messages is.

    Raises `ImportFailed`.
    """
    return collect(_pieces(path))


def is_said(item: object) -> bool:
    """Whether it is a message, in one form or the other."""
    fields = as_mapping(item)
    return ("from" in fields and "value" in fields) or isinstance(fields.get("role"), str)


def is_sharegpt(item: object) -> bool:
    """Whether it is a conversation in one of these forms."""
    said = _said(as_mapping(item))
    return said is not None and any(map(is_said, islice(said, 20)))


def _pieces(path: str | os.PathLike[str]) -> Iterator[ImportedConversation | Rejected]:
    for name, text in texts_in(path):
        if _is_one_value(text):
            items = list(items_of(name, text))
            if items and all(map(is_said, items)):
                yield from conversation_of({"messages": items}, name)
                continue
            found = iter([(f"{name}, conversation {n}", item) for n, item in enumerate(items)])
        else:
            found = _in_lines(text)
        for where, item in found:
            if isinstance(item, Rejected):
                yield item
            else:
                yield from conversation_of(item, where)


def _is_one_value(text: bytes) -> bool:
    """Whether it is one JSON text, perhaps cut off, and not one a line."""
    if text.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return True
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _in_lines(text: bytes) -> Iterator[tuple[str, object]]:
    for piece in objects_in(text.splitlines()):
        if isinstance(piece, Rejected):
            yield piece.where, piece
        else:
            yield f"line {piece[0]}", piece[1]


def conversation_of(item: object, where: str) -> Iterator[ImportedConversation | Rejected]:
    """One conversation, and what of it can't be read."""
    fields = as_mapping(item)
    if (said := _said(fields)) is None:
        what = f"only {sorted(fields)}" if fields else type(item).__name__
        why = f"no conversation: a list of messages is expected, not {what[:200]}"
        yield Rejected(where, raw_of(item), why)
        return
    reader = ChatReader()
    records: list[StoredMessage] = []
    if isinstance(system := fields.get("system") or fields.get("system_prompt"), str):
        records.append(reader.read({"role": "system", "content": system}))
    for number, each in enumerate(said):
        try:
            records.append(reader.read(_chat_form(as_mapping(each), number)))
        except InvalidMessage as error:
            yield Rejected(f"{where}, message {number}", raw_of(each), str(error))
    yield ImportedConversation(
        StoredMessages(with_own_ids(records)),
        id=str(fields.get("id") or ""),
        title=str(fields.get("title") or ""),
        created=parse_timestamp(fields.get("created")),
    )


def _said(fields: Mapping[str, Any]) -> list[object] | None:
    return next((as_list(fields[n]) for n in _LISTS if isinstance(fields.get(n), list)), None)


def _chat_form(fields: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """A message of ShareGPT's as chat completions have it; any other as it is."""
    if "role" in fields and "content" in fields:
        return fields
    speaker = next((fields[name] for name in _SPEAKER if name in fields), None)
    words: object = next((fields[name] for name in _WORDS if fields.get(name) is not None), "")
    name = str(speaker).strip().lower()
    if name not in _CALLS:
        text = words if isinstance(words, str) or as_list(words) else raw_of(words).decode()
        return {"role": ROLES.get(name, name), "content": text}
    calls = [
        {"id": f"call_{number}_{index}", "type": "function", "function": _call(call, words)}
        for index, call in enumerate(_calls(words))
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _calls(words: object) -> list[object]:
    try:
        found: object = orjson.loads(words) if isinstance(words, str) else words
    except orjson.JSONDecodeError:
        found = {}
    return as_list(found) or [found]


def _call(call: object, words: object) -> dict[str, str]:
    fields = as_mapping(call, "function") or as_mapping(call)
    given = fields.get("arguments", fields.get("parameters"))
    arguments = to_arguments(given) if fields else to_arguments(words)
    return {"name": str(fields.get("name") or "tool"), "arguments": arguments}
