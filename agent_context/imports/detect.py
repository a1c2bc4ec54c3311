"""Which kind of file it is, and its conversations."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, cast

from agent_context.errors import ImportFailed
from agent_context.imports.agents_sqlite import read_agents_sqlite
from agent_context.imports.chatgpt import read_chatgpt
from agent_context.imports.claude import read_claude
from agent_context.imports.claude_code import is_claude_code, read_claude_code
from agent_context.imports.codex import is_codex, read_codex
from agent_context.imports.deepseek import read_deepseek
from agent_context.imports.export_archive import items_of, texts_in
from agent_context.imports.jsonl import read_jsonl
from agent_context.imports.lenient_jsonl import lines_of, objects_in
from agent_context.imports.result import ImportResult, Rejected
from agent_context.imports.sharegpt import is_said, is_sharegpt, read_sharegpt
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["Format", "detect", "read"]


class Format(StrEnum):
    """What can be imported."""

    JSONL = "jsonl"
    """Lines of messages, or of objects with `messages`."""
    AGENTS_SQLITE = "agents-sqlite"
    """Sessions of openai-agents."""
    CHATGPT = "chatgpt"
    DEEPSEEK = "deepseek"
    CLAUDE = "claude"
    CODEX = "codex"
    """A rollout of the Codex command line."""
    CLAUDE_CODE = "claude-code"
    SHAREGPT = "sharegpt"
    """Conversations of a data set, in ShareGPT's form or as lists of messages."""


_READERS: Mapping[Format, Callable[[str | os.PathLike[str]], ImportResult]] = {
    Format.JSONL: read_jsonl,
    Format.AGENTS_SQLITE: read_agents_sqlite,
    Format.CHATGPT: read_chatgpt,
    Format.DEEPSEEK: read_deepseek,
    Format.CLAUDE: read_claude,
    Format.CODEX: read_codex,
    Format.CLAUDE_CODE: read_claude_code,
    Format.SHAREGPT: read_sharegpt,
}

_EXPECTED = (
    "lines of messages, sessions of openai-agents in an SQLite file, sessions of Codex or Claude "
    "Code, conversations in ShareGPT's form, or the conversations.json (or zip file) of an export "
    "of ChatGPT, DeepSeek or Claude are expected"
)


def read(path: str | os.PathLike[str], form: Format | None = None) -> ImportResult:
    """The conversations in a file of this format, or of the one that it looks like.

    Raises `ImportFailed` with the reason and, where there is one, the line.
    """
    return _READERS[Format(form) if form is not None else detect(path)](path)


def detect(path: str | os.PathLike[str]) -> Format:
    """What the file looks like, by what is in it. Raises `ImportFailed` if it is like nothing."""
    file = Path(path)
    try:
        with file.open("rb") as opened:
            beginning = opened.read(4096)
    except OSError as error:
        raise ImportFailed(0, f"{file}: {error.strerror}") from error
    if beginning.startswith(b"SQLite format 3\0"):
        return Format.AGENTS_SQLITE
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"[") or zipfile.is_zipfile(file):
        return _export(file)
    if text.startswith(b"{") or not text.strip(b"\0"):
        return _lines(file) or _export(file)
    raise ImportFailed(0, f"{file}: {_EXPECTED}, not what begins with {beginning[:20]!r}")


def _lines(file: Path) -> Format | None:
    """What lines of it say that it is; JSONL if there are none, None if they say nothing."""
    with file.open("rb") as opened:
        pieces = list(islice(objects_in(lines_of(opened)), 20))
    objects = [piece[1] for piece in pieces if not isinstance(piece, Rejected)]
    if not pieces or any("agent_context" in each for each in objects):
        return Format.JSONL
    if any(map(is_codex, objects)):
        return Format.CODEX
    if any(map(is_claude_code, objects)):
        return Format.CLAUDE_CODE
    if any(map(_is_dataset, objects)):
        return Format.SHAREGPT
    if any(not {"role", "messages"}.isdisjoint(each) for each in objects):
        return Format.JSONL
    return None


def _is_dataset(item: Mapping[str, Any]) -> bool:
    return is_sharegpt(item) and not (
        "messages" in item and "role" in as_mapping(next(iter(as_list(item["messages"])), None))
    )


def _export(file: Path) -> Format:
    first: object = None
    for name, text in texts_in(file):
        for item in items_of(name, text):
            if isinstance(item, dict) and (found := _of(cast("Mapping[str, Any]", item))):
                return found
            if first is None and not isinstance(item, Rejected):
                keys = sorted(cast("Mapping[str, Any]", item)) if isinstance(item, dict) else item
                first = f"{name}: {_EXPECTED}, not a list of {str(keys)[:200]}"
    raise ImportFailed(0, str(first or f"{file}: {_EXPECTED}, not an empty list"))


def _of(item: Mapping[str, Any]) -> Format | None:
    if "chat_messages" in item:
        return Format.CLAUDE
    if is_said(item) or is_sharegpt(item):
        return Format.SHAREGPT
    if "mapping" not in item:
        return None
    return Format.DEEPSEEK if "inserted_at" in item else Format.CHATGPT
