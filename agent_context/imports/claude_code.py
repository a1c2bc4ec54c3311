"""Sessions of Claude Code: the `….jsonl` files below `~/.claude/projects`.

Its maker documents no format. Sources: files of 2025-06 to 2026-11, and programs that read them
(daaain/claude-code-log, simonw/claude-code-transcripts).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agent_context.errors import ImportFailed
from agent_context.imports.branches import branches
from agent_context.imports.lenient_jsonl import lines_of, objects_in
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    collect,
    parse_timestamp,
    raw_of,
)
from agent_context.imports.transcript import TranscriptBuilder, build_conversation
from agent_context.messages import FinishReason, Role, ToolCall
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["claude_code_pieces", "is_claude_code", "read_claude_code"]

_Line = Mapping[str, Any]

_NOTES: Final = frozenset({"summary", "file-history-snapshot", "queue-operation", "ai-title"})
_SPEAKERS: Final = frozenset({"assistant", "user"})


def read_claude_code(path: str | os.PathLike[str]) -> ImportResult:
    """The session along the branch that was written last.

    A side chain, what an agent of the session did on its own, is a conversation by itself. Raises
    `ImportFailed`.
    """
    try:
        with Path(path).open("rb") as file:
            return collect(claude_code_pieces(lines_of(file)))
    except OSError as error:
        raise ImportFailed(0, f"{os.fspath(path)}: {error.strerror}") from error


def is_claude_code(line: _Line) -> bool:
    """Whether it is a line of such a file."""
    if line.get("type") in _NOTES:
        return True
    return "type" in line and "uuid" in line and "parentUuid" in line


def claude_code_pieces(lines: Iterable[bytes]) -> Iterator[ImportedConversation | Rejected]:
    """The session, its side chains, and what of them can't be read."""
    main: dict[str, _Line] = {}
    aside: dict[str, dict[str, _Line]] = {}
    title = ""
    chains: dict[str, str] = {}
    for piece in objects_in(lines):
        if isinstance(piece, Rejected):
            yield piece
            continue
        number, line = piece
        title = _text(line.get("summary")) or _text(line.get("customTitle")) or title
        name = _text(line.get("uuid"))
        if not name:
            continue
        if line.get("isApiErrorMessage"):
            yield Rejected(f"line {number}", raw_of(line), "an error that the program showed")
            line = {**line, "message": None}
        if line.get("isSidechain"):
            chain = _text(line.get("agentId")) or chains.get(_text(line.get("parentUuid")), name)
            chains[name] = chain
            aside.setdefault(chain, {})[name] = line
        else:
            main[name] = line
    yield from _conversation(main, title, "")
    for chain, nodes in aside.items():
        yield from _conversation(nodes, title, f"/{chain}")


def _conversation(
    nodes: Mapping[str, _Line], title: str, suffix: str
) -> Iterator[ImportedConversation | Rejected]:
    if not nodes:
        return

    def add(name: str, transcript: TranscriptBuilder) -> None:
        _add_to_transcript(nodes[name], name, transcript)

    first = next(iter(nodes.values()))
    yield from build_conversation(
        branches(_parents(nodes)),
        add,
        vendor="anthropic",
        id=_text(first.get("sessionId")) + suffix,
        title=title,
        created=parse_timestamp(first.get("timestamp")),
    )


def _parents(nodes: Mapping[str, _Line]) -> dict[str, str | None]:
    """What each line follows.

    Answers come in pieces, a line each, and the results of calls that ran side by side each follow
    the line of their call. These are no branches: of lines that follow one line only those that a
    user has said begin a branch, anything else follows what was written last behind it.
    """
    parents: dict[str, str | None] = {}
    last: dict[str, str] = {}
    above: dict[str, str] = {}
    previous: str | None = None
    for name, line in nodes.items():
        named = _text(line.get("parentUuid")) or _text(line.get("logicalParentUuid"))
        parent = named if named in parents else previous if named else None
        if parent is not None and not _is_prompt(line):
            turn = above.get(parent, parent)
            parent = last.get(turn, parent)
            above[name] = turn
            last[turn] = name
        parents[name] = parent
        previous = name
    return parents


def _is_prompt(line: _Line) -> bool:
    """Whether a user has said this: no tool's result, and no note of the program."""
    if line.get("type") != "user":
        return False
    content = as_mapping(line, "message").get("content")
    kinds = {as_mapping(block).get("type") for block in as_list(content)}
    return "tool_result" not in kinds and not line.get("isMeta")


def _add_to_transcript(line: _Line, name: str, transcript: TranscriptBuilder) -> None:
    message = as_mapping(line, "message")
    if line.get("type") not in _SPEAKERS or not message:
        return
    transcript.time = parse_timestamp(line.get("timestamp"))
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)
    if line.get("type") == "assistant":
        transcript.model = _text(message.get("model"))
        for number, block in enumerate(map(as_mapping, blocks)):
            _add_block(block, f"{name}/{number}" if number else name, transcript, message)
        return
    texts: list[str] = []
    for number, block in enumerate(map(as_mapping, blocks)):
        if block.get("type") == "tool_result":
            place = f"{name}/{number}" if number else name
            answered = _text(block.get("tool_use_id"))
            transcript.add_result(_result(block.get("content")), "", place, call_id=answered)
        else:
            texts.append(_text(block.get("text")) or f"[{block.get('type')}]")
    place = name if len(texts) == len(blocks) else f"{name}/text"
    transcript.add_user(Role.USER, "\n\n".join(texts), place)


def _add_block(block: _Line, name: str, transcript: TranscriptBuilder, message: _Line) -> None:
    match block.get("type"):
        case "thinking":
            transcript.add_reasoning(_text(block.get("thinking")))
        case "tool_use":
            arguments = raw_of(block.get("input") or {}).decode()
            call_id, tool = _text(block.get("id")) or name, _text(block.get("name"))
            transcript.add_call(ToolCall(id=call_id, name=tool, arguments=arguments), name)
        case _:
            cut = message.get("stop_reason") == "max_tokens"
            finish = FinishReason.LENGTH if cut else None
            transcript.add_assistant(_text(block.get("text")), name, finish=finish)


def _result(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = map(as_mapping, as_list(content))
    return "\n".join(_text(part.get("text")) or f"[{part.get('type')}]" for part in parts)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
