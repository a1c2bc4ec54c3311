"""Sessions of the Codex command line: `rollout-….jsonl` files.

Source: openai/codex, codex-rs/protocol/src/protocol.rs (`RolloutItem`) and models.rs
(`ResponseItem`), 2026-11; and the files of 2025, whose lines are the items themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agent_context.errors import ImportFailed
from agent_context.imports.lenient_jsonl import lines_of, objects_in
from agent_context.imports.responses_api import Row, messages_from
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    own_ids,
    parse_timestamp,
)
from agent_context.wire.lenient_json import as_mapping

__all__ = ["codex_pieces", "is_codex", "read_codex"]

_LINES: Final = frozenset({"compacted", "event_msg", "response_item", "session_meta"})
_ITEMS: Final = frozenset({"function_call", "function_call_output", "message", "reasoning"})


def read_codex(path: str | os.PathLike[str]) -> ImportResult:
    """The session, all of it: also what Codex has compacted since. Raises `ImportFailed`.

    What only the screen showed, and notes of the program, are not in it.
    """
    try:
        with Path(path).open("rb") as file:
            return collect(codex_pieces(lines_of(file)))
    except OSError as error:
        raise ImportFailed(0, f"{os.fspath(path)}: {error.strerror}") from error


def is_codex(line: Mapping[str, Any]) -> bool:
    """Whether it is a line of such a file."""
    if isinstance(line.get("payload"), Mapping):
        return line.get("type") in _LINES
    is_head = {"id", "timestamp", "instructions"} <= line.keys() and "role" not in line
    is_item = line.get("type") in _ITEMS and bool({"role", "call_id", "summary"} & line.keys())
    return line.get("record_type") == "state" or is_head or is_item


def codex_pieces(lines: Iterable[bytes]) -> Iterator[ImportedConversation | Rejected]:
    """The session, and what of it can't be read."""
    items: list[Row] = []
    head: Mapping[str, Any] = {}
    model, vendor = "", "openai"
    for piece in objects_in(lines):
        if isinstance(piece, Rejected):
            yield piece
            continue
        number, line = piece
        payload = as_mapping(line, "payload") or line
        kind = line.get("type") if "payload" in line else "response_item"
        if kind == "session_meta" or (not head and not items and "type" not in payload):
            head = head or payload
            vendor = str(head.get("model_provider") or vendor)
        elif kind == "turn_context":
            model = str(payload.get("model") or model)
        elif kind == "response_item" and "type" in payload and payload["type"] != "ghost_snapshot":
            noted = {**payload, "provider_data": {"model": model}} if model else payload
            items.append((f"line {number}", noted, parse_timestamp(line.get("timestamp"))))
    found = list(messages_from(items, vendor))
    yield from (piece for piece in found if isinstance(piece, Rejected))
    said = [piece for piece in found if not isinstance(piece, Rejected)]
    yield ImportedConversation(
        tuple(own_ids(message for message, _ in said)),
        id=str(head.get("id") or ""),
        created=parse_timestamp(head.get("timestamp")),
        times=tuple(time for _, time in said),
    )
