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

from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zone
from agent_context.errors import ImportFailed, InvalidMessage
from agent_context.imports.lenient_jsonl import objects_in
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    own_ids,
    parse_timestamp,
    raw_of,
)
from agent_context.messages import Message
from agent_context.wire.lenient_json import as_list

__all__ = ["jsonl_pieces", "read_jsonl", "recover_jsonl"]

_FORMAT = 1


def read_jsonl(path: str | os.PathLike[str]) -> ImportResult:
    """The conversations of a file, line by line.

    Raises `ImportFailed` if the file can't be opened or was written by a newer version.
    """
    try:
        with Path(path).open("rb") as file:
            return collect(jsonl_pieces(file))
    except OSError as error:
        raise ImportFailed(0, f"{os.fspath(path)}: {error.strerror}") from error


def jsonl_pieces(lines: Iterable[bytes]) -> Iterator[ImportedConversation | Rejected]:
    """The pieces as they come: conversations of a line each, and last the one of all messages."""
    said: list[Message] = []
    for piece in objects_in(lines):
        if isinstance(piece, Rejected):
            yield piece
            continue
        number, fields = piece
        if "agent_context" in fields:
            _check_header(fields, number)
        elif "messages" in fields:
            yield from _conversation(fields, number)
        else:
            message = _message(fields, f"line {number}")
            if isinstance(message, Message):
                said.append(message)
            else:
                yield message
    if said:
        yield ImportedConversation(tuple(own_ids(said)))


def recover_jsonl(text: bytes) -> tuple[str, tuple[Rejected, ...]]:
    """What of a broken export can be read, as a text that `FromJsonl` takes, and what can't be.

    Zones and ids stay. Of lines that hold a whole conversation there is nothing in it.
    """
    kept: list[tuple[Zone | None, Message]] = []
    quarantined: list[Rejected] = []
    for piece in objects_in(text.splitlines(keepends=False)):
        if isinstance(piece, Rejected):
            quarantined.append(piece)
            continue
        number, fields = piece
        if "agent_context" in fields:
            _check_header(fields, number)
            continue
        tag = _text(fields.get("zone"))
        message = _message(fields, f"line {number}")
        if isinstance(message, Rejected):
            quarantined.append(message)
        else:
            kept.append((Zone(tag) if tag in set(Zone) else None, message))
    lines = [orjson.dumps({"agent_context": _FORMAT})]
    messages = own_ids(message for _, message in kept)
    for (zone, _), message in zip(kept, messages, strict=True):
        lines.append(from_message(message).to_json_line(**({"zone": zone.value} if zone else {})))
    return b"\n".join((*lines, b"")).decode(), tuple(quarantined)


def _check_header(fields: dict[str, Any], number: int) -> None:
    if fields["agent_context"] != _FORMAT:
        raise ImportFailed(
            number, f"format {fields['agent_context']!r} is not known; this reads {_FORMAT}"
        )


def _conversation(fields: dict[str, Any], number: int) -> Iterator[ImportedConversation | Rejected]:
    where = f"line {number}"
    said: list[Message] = []
    found = fields["messages"]
    is_list = isinstance(found, list)
    if not is_list:
        why = f"messages: a list is expected, not {type(found).__name__}"
        yield Rejected(where, raw_of(fields), why)
    for index, item in enumerate(as_list(found)):
        message = _message(item, f"{where}, message {index}")
        if isinstance(message, Message):
            said.append(message)
        else:
            yield message
    yield ImportedConversation(
        tuple(own_ids(said)),
        id=_text(fields.get("id")),
        title=_text(fields.get("title")),
        created=parse_timestamp(fields.get("created")),
    )


def _message(item: object, where: str) -> Message | Rejected:
    if not isinstance(item, dict):
        why = f"an object is expected, not {type(item).__name__}"
        return Rejected(where, raw_of(item), why)
    fields = cast("dict[str, Any]", item)
    try:
        message = Message.model_validate({k: v for k, v in fields.items() if k != "zone"})
        if message.model_extra:
            from_message(message)  # refuses what a text that was mended may hold
    except InvalidMessage as error:
        return Rejected(where, raw_of(fields), str(error))
    return message


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
