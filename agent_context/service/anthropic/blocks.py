"""Messages as blocks of the Messages API, as a service gives and takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import orjson

from agent_context.errors import InvalidMessage
from agent_context.messages import (
    ImagePart,
    Message,
    OpaquePart,
    Part,
    TextPart,
    ToolCall,
    Usage,
)
from agent_context.service.errors import invalid
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["parse_messages", "parse_system", "to_blocks", "usage_json"]

Block = Mapping[str, Any]


def parse_system(system: str | Sequence[Block] | None) -> str | None:
    """What the system is told, as one text; None if it is told nothing."""
    if system is None or isinstance(system, str):
        return system or None
    return "\n\n".join(str(block.get("text") or "") for block in system).strip() or None


def parse_messages(raw: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages. Raises `ServiceError`, which says which is wrong."""
    messages: list[Message] = []
    for number, fields in enumerate(raw):
        try:
            messages += _parse(fields)
        except InvalidMessage as error:
            place = f"messages.{number}"
            raise invalid(f"{place}: {error}", param=place, code="invalid_message") from error
    return tuple(messages)


def _parse(fields: Mapping[str, Any]) -> Iterator[Message]:
    blocks = list(_blocks(fields.get("content")))
    match fields.get("role"):
        case "assistant":
            yield _answer(blocks)
        case "user":
            results = [block for block in blocks if block.get("type") == "tool_result"]
            yield from map(_result, results)
            said = [_part(block) for block in blocks if block.get("type") != "tool_result"]
            if said or not results:
                yield Message.user(said)
        case "system":  # in the middle of a talk, as newer clients have it
            yield Message.from_dict({"role": "system", "parts": tuple(map(_part, blocks))})
        case role:
            raise InvalidMessage(f"role: user or assistant, not {role!r}")


def _blocks(content: object) -> Iterator[Block]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
        return
    if not isinstance(content, list):
        raise InvalidMessage(f"content: text or a list of blocks, not {type(content).__name__}")
    for block in as_list(cast("object", content)):
        if not isinstance(block, dict):
            raise InvalidMessage(f"content: a block is an object, not {type(block).__name__}")
        yield as_mapping(cast("object", block))


def _answer(blocks: Iterable[Block]) -> Message:
    text: list[Part] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for block in blocks:
        match block:
            case {"type": "thinking", "thinking": str(thought)}:
                thoughts.append(thought)
            case {"type": "redacted_thinking"}:
                pass  # another vendor's, which nobody else can read
            case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
                arguments = orjson.dumps(block.get("input") or {}).decode()
                calls.append(ToolCall(id=call_id, name=name, arguments=arguments))
            case _:
                text.append(_part(block))
    return Message.assistant(text, tool_calls=calls, reasoning="\n\n".join(thoughts) or None)


def _result(block: Block) -> Message:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise InvalidMessage("tool_use_id: a tool_result names the call that it answers")
    parts = [] if content is None else [_part(each) for each in _blocks(content)]
    text = "".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)
    return Message.tool(call_id, text)


def _part(block: Block) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return ImagePart(url=url)
        case {"type": "image", "source": {"type": "base64", "media_type": kind, "data": str(data)}}:
            return ImagePart(url=f"data:{kind};base64,{data}")
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            return TextPart(text=text)
        case {"type": "document", "source": {"type": "base64", "media_type": kind, "data": data}}:
            file = {
                "filename": block.get("title") or "document",
                "file_data": f"data:{kind};base64,{data}",
            }
            return OpaquePart(data={"type": "file", "file": file})
        case _:
            raise InvalidMessage(
                "content: text, image, document, thinking, tool_use or tool_result; "
                f"not {block.get('type')!r}"
            )


def to_blocks(message: Message) -> list[dict[str, Any]]:
    """A model's answer."""
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
    if message.text:
        blocks.append({"type": "text", "text": message.text, "citations": None})
    for call in message.tool_calls:
        block = {"type": "tool_use", "id": call.id, "name": call.name}
        blocks.append({**block, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> Mapping[str, Any]:
    try:
        return as_mapping(orjson.loads(arguments or "{}"))
    except orjson.JSONDecodeError:
        return {}


def usage_json(usage: Usage) -> dict[str, Any]:
    """Tokens in the words of the Messages API, where what is cached is no part of the input."""
    cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    return {
        "input_tokens": max(0, (usage.input_tokens or 0) - cached - written),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.output_tokens or 0,
    }
