"""Exports of DeepSeek's chat: `conversations.json`, or the zip file that it comes in.

Its maker documents no format. Sources: programs that read such exports, of 2025-03 to 2026-09,
among them those of DavidShiang/DeepSeek2md and ceyaima/deepseek-exporter.
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
from agent_context.messages import Role
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["deepseek_conversation", "read_deepseek"]

_Node = Mapping[str, Any]

_KNOWN = frozenset({"REQUEST", "RESPONSE", "TEMPLATE_RESPONSE", "THINK"})


def read_deepseek(path: str | os.PathLike[str]) -> ImportResult:
    """The conversations of an export, along the branch that was written last.

    What was searched is not in a conversation, but reported. Raises `ImportFailed`.
    """
    return read_export(path, deepseek_conversation)


def deepseek_conversation(exported: Exported) -> Iterator[ImportedConversation | Rejected]:
    """One conversation of an export."""
    if (missing := lacks(exported, "mapping", dict)) is not None:
        yield missing
        return
    nodes = {name: as_mapping(node) for name, node in as_mapping(exported, "mapping").items()}
    parents = {name: _text(node.get("parent")) or None for name, node in nodes.items()}
    for name, node in nodes.items():
        for fragment in _fragments(node):
            if _text(fragment.get("type")) not in _KNOWN:
                why = f"a fragment of the type {fragment.get('type')!r} is nothing that was said"
                yield Rejected(f"message {name}", raw_of(fragment), why)

    def add(name: str, transcript: TranscriptBuilder) -> None:
        _add_to_transcript(nodes[name], name, transcript)

    yield from build_conversation(
        branches(parents),
        add,
        vendor="deepseek",
        id=_text(exported.get("id")),
        title=_text(exported.get("title")),
        created=parse_timestamp(exported.get("inserted_at")),
    )


def _fragments(node: _Node) -> list[_Node]:
    return [as_mapping(each) for each in as_list(as_mapping(node, "message").get("fragments"))]


def _add_to_transcript(node: _Node, name: str, transcript: TranscriptBuilder) -> None:
    message = as_mapping(node, "message")
    transcript.time = parse_timestamp(message.get("inserted_at"))
    transcript.model = _text(message.get("model"))
    texts: dict[str, list[str]] = {}
    for fragment in _fragments(node):
        texts.setdefault(_text(fragment.get("type")), []).append(_text(fragment.get("content")))
    files = [_file(as_mapping(each)) for each in as_list(message.get("files"))]
    transcript.add_user(Role.USER, "\n".join((*files, *texts.get("REQUEST", ()))), name)
    transcript.add_reasoning("\n\n".join(texts.get("THINK", ())))
    answer = (*texts.get("RESPONSE", ()), *texts.get("TEMPLATE_RESPONSE", ()))
    transcript.add_assistant("\n\n".join(answer), name)


def _file(fields: _Node) -> str:
    name = _text(fields.get("file_name")) or _text(fields.get("name"))
    content = _text(fields.get("content"))
    return f"[file {name}]" + (f"\n{content}" if content else "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
