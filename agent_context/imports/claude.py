"""Exports of Claude's chat: `conversations.json`, or the zip file that it comes in.

Its maker documents no format. Sources: schema/claude-json-schema.json of
brandtcormorant/claude-json-schema and docs/providers/claude-ai.md of Sinity/polylogue (2025);
programs that read `parent_message_uuid` and thinking (2026).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from agent_context.imports.branches import branches
from agent_context.imports.export_archive import Exported, lacks, read_export
from agent_context.imports.result import (
    ImportedConversation,
    ImportResult,
    Rejected,
    parse_timestamp,
    raw_of,
)
from agent_context.imports.transcript import TranscriptBuilder, build_conversation
from agent_context.messages import Role, ToolCall
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["claude_conversation", "read_claude"]

_Node = Mapping[str, Any]

_KNOWN = frozenset({"text", "thinking", "tool_result", "tool_use"})
_NOT_SHOWN = "```\nThis block is not supported on your current device yet.\n```"
"""What the text of a message has in the place of a block that isn't text."""
_SENDERS = frozenset({"assistant", "human"})


def read_claude(path: str | os.PathLike[str]) -> ImportResult:
    """The conversations of an export, along the branch that was shown last.

    What attached files hold is a part of the message; pictures are named. Raises `ImportFailed`.
    """
    return read_export(path, claude_conversation)


def claude_conversation(exported: Exported) -> Iterator[ImportedConversation | Rejected]:
    """One conversation of an export."""
    if (missing := lacks(exported, "chat_messages", list)) is not None:
        yield missing
        return
    found = [as_mapping(each) for each in as_list(exported.get("chat_messages"))]
    nodes = {_text(each.get("uuid")) or f"message-{n}": each for n, each in enumerate(found)}
    yield from _unread(nodes)

    model = _text(exported.get("model"))

    def add(name: str, transcript: TranscriptBuilder) -> None:
        transcript.model = model
        _add_to_transcript(nodes[name], name, transcript)

    yield from build_conversation(
        branches(_parents(nodes), _text(exported.get("current_leaf_message_uuid"))),
        add,
        vendor="anthropic",
        id=_text(exported.get("uuid")),
        title=_text(exported.get("name")),
        created=parse_timestamp(exported.get("created_at")),
    )


def _parents(nodes: Mapping[str, _Node]) -> dict[str, str | None]:
    """Where no message names its parent, each follows the one before."""
    if any(_text(node.get("parent_message_uuid")) in nodes for node in nodes.values()):
        return {name: _text(node.get("parent_message_uuid")) for name, node in nodes.items()}
    return dict(zip(nodes, (None, *nodes), strict=False))


def _unread(nodes: Mapping[str, _Node]) -> Iterator[Rejected]:
    for name, node in nodes.items():
        if (sender := _text(node.get("sender"))) not in _SENDERS:
            why = f"the sender {sender!r} is not known"
            yield Rejected(f"message {name}", raw_of(node), why)
            continue
        for block in map(as_mapping, as_list(node.get("content"))):
            if (kind := _text(block.get("type"))) not in _KNOWN:
                taken = "only its text is taken" if _text(block.get("text")) else "it has no text"
                why = f"a block of the type {kind!r} is not known: {taken}"
                yield Rejected(f"message {name}", raw_of(block), why)


def _add_to_transcript(node: _Node, name: str, transcript: TranscriptBuilder) -> None:
    transcript.time = parse_timestamp(node.get("created_at"))
    blocks = [as_mapping(block) for block in as_list(node.get("content"))]
    known = _KNOWN.issuperset(_text(block.get("type")) for block in blocks)
    if not blocks or not (known or any(_text(block.get("text")) for block in blocks)):
        text = _text(node.get("text")).replace(_NOT_SHOWN, "")
        blocks.append({"type": "text", "text": text})
    match node.get("sender"):
        case "human":
            texts = [_text(block.get("text")) for block in blocks]
            transcript.add_user(Role.USER, "\n\n".join(filter(None, (*texts, *_files(node)))), name)
        case "assistant":
            for number, block in enumerate(blocks):
                _add_block(block, f"{name}/{number}" if number else name, transcript)
        case _:
            pass


def _add_block(block: _Node, name: str, transcript: TranscriptBuilder) -> None:
    match block.get("type"):
        case "text":
            transcript.add_assistant(_text(block.get("text")), name)
        case "thinking":
            transcript.add_reasoning(_text(block.get("thinking")))
        case "tool_use":
            tool, arguments = _text(block.get("name")), raw_of(block.get("input") or {})
            call_id = _text(block.get("id")) or name
            call = ToolCall(id=call_id, name=tool, arguments=arguments.decode())
            transcript.add_call(call, name)
        case "tool_result":
            result, tool = _result(block.get("content")), _text(block.get("name"))
            answered = _text(block.get("tool_use_id"))
            transcript.add_result(result, tool, name, call_id=answered)
        case _:
            transcript.add_assistant(_text(block.get("text")), name)


def _result(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = map(as_mapping, as_list(content))
    return "\n".join(_text(part.get("text")) or f"[{part.get('type')}]" for part in parts)


def _files(node: _Node) -> Iterator[str]:
    for each in map(as_mapping, as_list(node.get("attachments"))):
        content = _text(each.get("extracted_content"))
        yield f"[file {_text(each.get('file_name'))}]" + (f"\n{content}" if content else "")
    for each in map(as_mapping, as_list(node.get("files"))):
        yield f"[file {_text(each.get('file_name'))}]"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
