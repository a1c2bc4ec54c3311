"""Messages as items of the Responses API, as a service gives and takes them."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from agent_context._context.stored_message import from_message
from agent_context.errors import InvalidMessage
from agent_context.messages import (
    ImagePart,
    Message,
    OpaquePart,
    Part,
    Role,
    TextPart,
    ToolCall,
)
from agent_context.service.errors import invalid
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["compaction_item", "input_item", "message_id_of", "parse_items", "stored_items"]

Item = Mapping[str, Any]

_SKIPPED: Final = frozenset(
    {"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"}
)
"""What a vendor did on its own: nothing here can take it up."""
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


# Items that come in.


@dataclass
class _Answer:
    """Neighbouring items of the model, on their way to one message."""

    text: list[Part] = field(default_factory=list[Part])
    reasoning: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def take(self) -> Iterator[Message]:
        """The message, if there is one; the next begins empty."""
        if self.text or self.calls:
            thought = "\n\n".join(self.reasoning) or None
            yield Message.assistant(self.text, tool_calls=self.calls, reasoning=thought)
        self.text, self.reasoning, self.calls = [], [], []


def parse_items(raw: str | Sequence[Item], param: str = "input") -> tuple[Message, ...]:
    """The messages that the items make. Raises `ServiceError`, which says which is wrong."""
    if isinstance(raw, str):
        return (Message.user(raw),) if raw else ()
    answer, messages = _Answer(), list[Message]()
    for number, item in enumerate(raw):
        try:
            messages += _parse(item, answer)
        except InvalidMessage as error:
            place = f"{param}.{number}"
            raise invalid(f"{place}: {error}", param=place, code="invalid_item") from error
    messages += answer.take()
    return tuple(messages)


def _parse(item: Item, answer: _Answer) -> Iterator[Message]:
    kind = item.get("type") or ("message" if "role" in item else None)
    match kind:
        case "message" if item.get("role") == "assistant":
            if answer.text or answer.calls:
                yield from answer.take()
            answer.text = list(_parts(item.get("content")))
        case "message":
            yield from answer.take()
            role = Role.SYSTEM if item.get("role") == "developer" else item.get("role")
            yield Message.from_dict({"role": role, "parts": tuple(_parts(item.get("content")))})
        case "reasoning":
            if answer.text or answer.calls:
                yield from answer.take()
            thoughts = [*(item.get("content") or ()), *(item.get("summary") or ())]
            answer.reasoning += _texts(thoughts)
        case "function_call":
            call = {name: item.get(name) for name in ("name", "arguments")}
            answer.calls.append(_call({"id": item.get("call_id") or item.get("id"), **call}))
        case "function_call_output" | "custom_tool_call_output":
            yield from answer.take()
            yield Message.tool(_text(item, "call_id"), _output(item.get("output")))
        case "custom_tool_call":
            arguments = orjson.dumps({"input": item.get("input")}).decode()
            fields = {"id": item.get("call_id"), "name": item.get("name")}
            answer.calls.append(_call({**fields, "arguments": arguments}))
        case "compaction":
            yield from answer.take()
            yield from _decode_compaction(_text(item, "encrypted_content"))
        case str() if kind in _SKIPPED:
            return
        case _:
            raise InvalidMessage(
                "type: message, reasoning, function_call, function_call_output or compaction; "
                f"not {kind!r}"
            )


def _output(output: object) -> str:
    """What a tool gave: text, parts, or an object of the client's own, which is kept as JSON."""
    if isinstance(output, dict):
        return orjson.dumps(cast("object", output)).decode()
    return "".join(_texts(output))


def _texts(content: object) -> list[str]:
    return [part.text for part in _parts(content) if isinstance(part, TextPart)]


def _text(item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidMessage(f"{name}: a text is expected, not {value!r}")
    return value


def _call(fields: dict[str, Any]) -> ToolCall:
    for name in ("id", "name", "arguments"):
        _text({name: fields[name] or ("" if name != "arguments" else "{}")}, name)
    return ToolCall(id=fields["id"], name=fields["name"], arguments=fields["arguments"] or "{}")


def _parts(content: object) -> Iterator[Part]:
    if content is None:
        return
    if isinstance(content, str):
        if content:
            yield TextPart(text=content)
        return
    if not isinstance(content, list):
        raise InvalidMessage(f"content: text or a list of parts, not {type(content).__name__}")
    for raw in as_list(cast("object", content)):
        if not isinstance(raw, dict):
            raise InvalidMessage(f"content: a part is an object, not {type(raw).__name__}")
        yield _part(as_mapping(cast("object", raw)))


def _part(raw: Mapping[str, Any]) -> Part:
    kind = raw.get("type")
    if kind in _TEXTS:
        return TextPart(text=str(raw.get("text") or ""))
    if kind == "refusal":
        return TextPart(text=str(raw.get("refusal") or ""))
    if kind == "input_image" and isinstance(raw.get("image_url"), str):
        return ImagePart(url=raw["image_url"], detail=raw.get("detail"))
    if kind == "input_file":
        data = {name: value for name, value in raw.items() if name != "type"}
        return OpaquePart(data={"type": "file", "file": data})
    raise InvalidMessage(
        f"content: input_text, output_text, input_image or input_file, not {kind!r}"
    )


# Items that go out.


def stored_items(message: Message) -> list[dict[str, Any]]:
    """A stored message as the items of a conversation; their ids tell the message."""
    match message.role:
        case Role.TOOL:
            return [
                {
                    "type": "function_call_output",
                    "id": f"fco_{message.id}",
                    "call_id": message.tool_call_id,
                    "output": message.text,
                    "status": "completed",
                }
            ]
        case Role.ASSISTANT:
            return [*_answer_items(message)]
        case _:
            return [input_item(message)]


def input_item(message: Message) -> dict[str, Any]:
    """What a user or the system says."""
    return {
        "type": "message",
        "id": f"msg_{message.id}",
        "role": message.role.value,
        "status": "completed",
        "content": [_input_part(part) for part in message.parts],
    }


def _answer_items(message: Message) -> Iterator[dict[str, Any]]:
    status = "incomplete" if message.interrupted else "completed"
    if message.reasoning:
        thought = {"type": "reasoning_text", "text": message.reasoning}
        yield {
            "type": "reasoning", "id": f"rs_{message.id}", "summary": [], "content": [thought],
            "status": status,
        }  # fmt: skip
    if message.text or not message.tool_calls:
        part = {"type": "output_text", "text": message.text}
        content = [{**part, "annotations": list[Any](), "logprobs": list[Any]()}]
        yield {
            "type": "message", "id": f"msg_{message.id}", "role": "assistant", "status": status,
            "content": content,
        }  # fmt: skip
    for number, call in enumerate(message.tool_calls):
        yield {
            "type": "function_call", "id": f"fc{number}_{message.id}", "call_id": call.id,
            "name": call.name, "arguments": call.arguments, "status": status,
        }  # fmt: skip


def _input_part(part: Part) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "input_text", "text": part.text}
        case ImagePart():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail or "auto"}
        case OpaquePart():
            return {"type": "input_file", **part.data.get("file", {})}


def message_id_of(item_id: str) -> str:
    """The id of the message that an item is, or is a part of."""
    return item_id.partition("_")[2]


def compaction_item(item_id: str, messages: Sequence[Message]) -> dict[str, Any]:
    """A history in one item, for a client to send again. Opaque to it, and no secret."""
    lines = b"\n".join(from_message(message).to_json_line() for message in messages)
    content = base64.b64encode(lines).decode()
    return {"type": "compaction", "id": item_id, "encrypted_content": content}


def _decode_compaction(text: str) -> Iterator[Message]:
    try:
        lines = base64.b64decode(text, validate=True).splitlines()
        for line in lines:
            yield Message.from_dict(orjson.loads(line))
    except ValueError as error:
        raise InvalidMessage(f"encrypted_content: not of this service: {error}") from error
