"""Conversations from lines of JSON: one message a line, or one conversation a line.

The first is what chat programs log, and what `ToJsonl` writes; the second, `{"messages": […]}`,
is the form of fine-tuning files. What is broken is reported, and the rest is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import orjson

from agent_context._context.stored_message import StoredMessage, StoredMessages
from agent_context._context.zones import Zone
from agent_context.errors import ImportFailed, InvalidMessage
from agent_context.imports.chat_form import ChatReader
from agent_context.imports.lenient_jsonl import lines_of, objects_in
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    parse_timestamp,
    raw_of,
    with_own_ids,
)
from agent_context.wire.lenient_json import as_list

__all__ = ["jsonl_pieces", "read_jsonl", "recover_jsonl"]

_FORMAT = 1


def read_jsonl(path: str | os.PathLike[str]) -> ImportResult:
    """The conversations of a file, line by line.

    Raises `ImportFailed` if the file can't be opened or was written by a newer version.
    """
    try:
        with Path(path).open("rb") as file:
            return collect(jsonl_pieces(lines_of(file)))
    except OSError as error:
        raise ImportFailed(0, f"{os.fspath(path)}: {error.strerror}") from error


def jsonl_pieces(lines: Iterable[bytes]) -> Iterator[ImportedConversation | Rejected]:
    """The pieces as they come: conversations of a line each, and last the one of all messages."""
    said: list[StoredMessage] = []
    reader = ChatReader()
    for number, line in enumerate(lines, start=1):
        if (message := reader.read_line(line)) is not None:
            said.append(message)
            continue
        for piece in objects_in([line], first=number):
            if isinstance(piece, Rejected):
                yield piece
            elif "agent_context" in piece[1]:
                _check_header(piece[1], number)
            elif "messages" in piece[1]:
                yield from _conversation(piece[1], number)
            elif isinstance(read := _message(piece[1], f"line {number}", reader), Rejected):
                yield read
            else:
                said.append(read)
    if said:
        yield ImportedConversation(StoredMessages(with_own_ids(said)))


def recover_jsonl(text: bytes) -> tuple[str, tuple[Rejected, ...]]:
    """What of a broken export can be read, as a text that `FromJsonl` takes, and what can't be.

    Zones and ids stay. Of lines that hold a whole conversation there is nothing in it.
    """
    kept: list[StoredMessage] = []
    tags: list[str] = []
    quarantined: list[Rejected] = []
    reader = ChatReader()
    for piece in objects_in(text.splitlines(keepends=False)):
        if isinstance(piece, Rejected):
            quarantined.append(piece)
            continue
        number, fields = piece
        if "agent_context" in fields:
            _check_header(fields, number)
            continue
        tag = _text(fields.get("zone"))
        message = _message(fields, f"line {number}", reader)
        if isinstance(message, Rejected):
            quarantined.append(message)
        else:
            kept.append(message)
            tags.append(tag if tag in set(Zone) else "")
    lines = [orjson.dumps({"agent_context": _FORMAT})]
    for tag, record in zip(tags, with_own_ids(kept), strict=True):
        lines.append(record.to_json_line(**({"zone": tag} if tag else {})))
    return b"\n".join((*lines, b"")).decode(), tuple(quarantined)


def _check_header(fields: dict[str, Any], number: int) -> None:
    if fields["agent_context"] != _FORMAT:
        raise ImportFailed(
            number, f"format {fields['agent_context']!r} is not known; this reads {_FORMAT}"
        )


def _conversation(fields: dict[str, Any], number: int) -> Iterator[ImportedConversation | Rejected]:
    where = f"line {number}"
    said: list[StoredMessage] = []
    reader = ChatReader()
    found = fields["messages"]
    is_list = isinstance(found, list)
    if not is_list:
        why = f"messages: a list is expected, not {type(found).__name__}"
        yield Rejected(where, raw_of(fields), why)
    for index, item in enumerate(as_list(found)):
        message = _message(item, f"{where}, message {index}", reader)
        if isinstance(message, Rejected):
            yield message
        else:
            said.append(message)
    yield ImportedConversation(
        StoredMessages(with_own_ids(said)),
        id=_text(fields.get("id")),
        title=_text(fields.get("title")),
        created=parse_timestamp(fields.get("created")),
    )


def _message(item: object, where: str, reader: ChatReader) -> StoredMessage | Rejected:
    if not isinstance(item, dict):
        why = f"an object is expected, not {type(item).__name__}"
        return Rejected(where, raw_of(item), why)
    fields = cast("dict[str, Any]", item)
    try:
        return reader.read(fields)
    except InvalidMessage as error:
        return Rejected(where, raw_of(fields), str(error))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
