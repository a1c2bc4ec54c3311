"""Exports of ChatGPT: `conversations.json`, or the zip file that it comes in.

Its maker documents no format. Sources: "ChatGPT User Data Export Specification (Unofficial)" 3.0
(2026-02, docs/dev/chatgpt-spec.md of mohamed-chs/convoviz) and docs/chatgpt-data-export-format.md
of mitkury/chatgpt-export-parser.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

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
from agent_context.messages import FinishReason, Role, ToolCall
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["chatgpt_conversation", "read_chatgpt"]

_Node = Mapping[str, Any]

_TEXTS = {
    "code": ("text",),
    "execution_output": ("text",),
    "model_editable_context": ("model_set_context",),
    "sonic_webpage": ("title", "url", "text"),
    "system_error": ("name", "text"),
    "tether_browsing_display": ("summary", "result"),
    "tether_quote": ("title", "url", "text"),
    "user_editable_context": ("user_profile", "user_instructions"),
}
"""Where each type of content that has no parts has its text."""

_FINISHED = {
    "stop": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "interrupted": FinishReason.INTERRUPTED,
}


def read_chatgpt(path: str | os.PathLike[str]) -> ImportResult:
    """The conversations of an export, along the branch that was shown last.

    What the service hid from the user but not from the model, such as custom instructions, is
    there too. Pictures and files are named in the text: an export has them elsewhere. Raises
    `ImportFailed`.
    """
    return read_export(path, chatgpt_conversation)


def chatgpt_conversation(exported: Exported) -> Iterator[ImportedConversation | Rejected]:
    """One conversation of an export."""
    if (missing := lacks(exported, "mapping", dict)) is not None:
        yield missing
        return
    nodes = {name: as_mapping(node) for name, node in as_mapping(exported, "mapping").items()}
    parents = {name: _text(node.get("parent")) or None for name, node in nodes.items()}
    for name, node in nodes.items():
        if unread := _unread(node):
            yield Rejected(f"message {name}", raw_of(node.get("message")), unread)

    def add(name: str, transcript: TranscriptBuilder) -> None:
        _add_to_transcript(as_mapping(nodes[name], "message"), name, transcript)

    yield from build_conversation(
        branches(parents, _text(exported.get("current_node"))),
        add,
        vendor="openai",
        id=_text(exported.get("conversation_id")) or _text(exported.get("id")),
        title=_text(exported.get("title")),
        created=parse_timestamp(exported.get("create_time")),
    )


def _unread(node: _Node) -> str | None:
    """Why a node's message can't be told."""
    message = as_mapping(node, "message")
    if not message:
        return None
    role = _text(as_mapping(message, "author").get("role"))
    if role not in set(Role):
        return f"the role {role!r} is not known"
    content = as_mapping(message, "content")
    kind = _text(content.get("content_type"))
    known = kind in _TEXTS or kind in {"thoughts", "reasoning_recap"}
    if known or "parts" in content or "text" in content:
        return None
    return f"the content type {kind!r} is not known"


def _add_to_transcript(message: _Node, name: str, transcript: TranscriptBuilder) -> None:
    author, content = as_mapping(message, "author"), as_mapping(message, "content")
    transcript.time = parse_timestamp(message.get("create_time"))
    transcript.model = _text(as_mapping(message, "metadata").get("model_slug"))
    kind, text = _text(content.get("content_type")), _content(message)
    match author.get("role"):
        case _ if kind == "reasoning_recap":
            pass  # how long the model thought, for the user
        case "user" if kind in {"user_editable_context", "model_editable_context"}:
            transcript.add_user(Role.SYSTEM, text, name)
        case "user":
            transcript.add_user(Role.USER, text, name)
        case "system":
            transcript.add_user(Role.SYSTEM, text or _instructions(message), name)
        case "tool":
            transcript.add_result(text, _text(author.get("name")), name)
        case "assistant" if kind == "thoughts":
            for thought in as_list(content.get("thoughts")):
                transcript.add_reasoning(_join(as_mapping(thought), ("summary", "content")))
        case "assistant" if (tool := _text(message.get("recipient"))) not in {"", "all"}:
            transcript.add_call(ToolCall(id=name, name=tool, arguments=_arguments(text)), name)
        case "assistant":
            transcript.add_assistant(text, name, finish=_finish(message))
        case _:
            pass


def _content(message: _Node) -> str:
    content = as_mapping(message, "content")
    kind = _text(content.get("content_type"))
    if kind in _TEXTS:
        return _join(content, _TEXTS[kind])
    parts = [_part(part) for part in as_list(content.get("parts"))]
    return "\n".join(filter(None, parts)) or _text(content.get("text"))


def _part(part: object) -> str:
    """Text as it is; of anything else what it is, and where the export has it."""
    if isinstance(part, str):
        return part
    fields = as_mapping(part)
    if text := _text(fields.get("text")):
        return text
    kind = _text(fields.get("content_type")).removesuffix("_asset_pointer")
    pointer = fields.get("asset_pointer") or as_mapping(fields, "audio_asset_pointer").get(
        "asset_pointer"
    )
    return f"[{' '.join(filter(None, (kind, _text(pointer))))}]"


def _instructions(message: _Node) -> str:
    """What the user has set for all conversations, in exports before 2025."""
    data = as_mapping(as_mapping(message, "metadata"), "user_context_message_data")
    return _join(data, ("about_user_message", "about_model_message"))


def _arguments(text: str) -> str:
    """The JSON object that a call needs: the text, if it is one."""
    try:
        is_object = isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        is_object = False
    return text if is_object else raw_of({"input": text}).decode()


def _finish(message: _Node) -> FinishReason | None:
    if message.get("status") == "in_progress":
        return FinishReason.INTERRUPTED
    details = as_mapping(as_mapping(message, "metadata"), "finish_details")
    return _FINISHED.get(_text(details.get("type")))


def _join(fields: _Node, names: tuple[str, ...]) -> str:
    return "\n".join(filter(None, (_text(fields.get(name)) for name in names)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
