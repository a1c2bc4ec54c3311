"""Messages in chat-completions form, as other programs write them.

What differs in form alone is put right: other names of the roles, ids that are numbers, calls whose
arguments are objects, calls and results of the older `function_call`, reasoning as an object, other
words for why the model stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agent_context._context.chat_line import decode_fields, decode_line
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context.imports.result import raw_of
from agent_context.messages import FinishReason, Message, Role
from agent_context.wire.lenient_json import as_list, as_mapping

__all__ = ["ROLES", "ChatReader", "joined_text", "to_arguments", "to_chat_part"]

ROLES: Final[Mapping[str, str]] = {
    **{role.value: role.value for role in Role},
    **dict.fromkeys(("human", "prompter", "person"), "user"),
    **dict.fromkeys(
        ("ai", "bot", "gpt", "model", "chatgpt", "bing", "bard", "claude"), "assistant"
    ),
    **dict.fromkeys(("chatbot", "agent"), "assistant"),
    **dict.fromkeys(("function", "observation", "tool_response", "tool_result"), "tool"),
    **dict.fromkeys(("function_result", "function_response"), "tool"),
    "developer": "system",
}
"""Who speaks, by the names that other programs have for it."""

_FINISHED: Final[Mapping[str, str]] = {
    **{reason.value: reason.value for reason in FinishReason},
    **dict.fromkeys(("end_turn", "stop_sequence", "eos", "completed", "complete", "done"), "stop"),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length"), "length"),
    **dict.fromkeys(("tool_use", "function_call", "tool_call"), "tool_calls"),
    **dict.fromkeys(("safety", "recitation", "refusal", "sensitive"), "content_filter"),
    **dict.fromkeys(("cancelled", "canceled", "aborted"), "interrupted"),
}

_TEXTS: Final = ("text", "content", "summary", "thinking", "reasoning", "value")
"""Where an object that is a text may have it."""
_DEPTH = 8


class ChatReader:
    """Reads the messages of one conversation, one after the other."""

    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        """Ids and names of the calls that have no result yet."""
        self._made = 0

    def read(self, fields: Mapping[str, Any]) -> StoredMessage:
        """The message. Raises `InvalidMessage`."""
        plain = {name: value for name, value in fields.items() if name != "zone"}
        record = self._store(plain) or self._store(plain := self._mend(plain))
        if record is None:
            record = from_message(Message.model_validate(plain))
        self._note(record)
        return record

    def read_line(self, line: bytes) -> StoredMessage | None:
        """The message of a line that needs no closer look; None for any other line."""
        found = decode_line(line) if b'"messages"' not in line else None
        if found is None:
            return None
        self._note(found[1])
        return found[1]

    def _note(self, record: StoredMessage) -> None:
        if not record.call_ids:
            return
        if record.role is Role.ASSISTANT:
            names = [call.name for call in record.message.tool_calls] if self._made else []
            names += [""] * (len(record.call_ids) - len(names))
            self._open = list(zip(record.call_ids, names, strict=False))
        else:
            self._open = [call for call in self._open if call[0] not in record.call_ids]

    def _store(self, fields: dict[str, Any]) -> StoredMessage | None:
        found = decode_fields(fields)
        return found[1] if found is not None else None

    def _mend(self, fields: dict[str, Any]) -> dict[str, Any]:
        mended = {name: value for name, value in fields.items() if value is not None}
        role = fields.get("role")
        mended["role"] = ROLES.get(role.strip().lower(), role) if isinstance(role, str) else role
        _mend_names(mended)
        for name in ("reasoning", "reasoning_content"):
            if name in mended and not isinstance(mended[name], str):
                _mend_reasoning(mended, name)
        if "finish_reason" in mended:
            word = str(mended["finish_reason"]).lower()
            mended["finish_reason"] = _FINISHED.get(word, FinishReason.OTHER.value)
        if part := as_mapping(mended.get("content")):
            mended["content"] = [part]
        if "content" in mended:
            mended["content"] = _content(mended["content"])
        self._mend_calls(mended)
        return mended

    def _mend_calls(self, fields: dict[str, Any]) -> None:
        if calls := as_list(fields.get("tool_calls")):
            fields["tool_calls"] = [_mend_call(call) for call in calls]
        if fields["role"] == Role.ASSISTANT and "tool_calls" not in fields:
            old = fields.pop("function_call", None)
            if call := as_mapping(old):
                self._made += 1
                fields["tool_calls"] = [_mend_call({"id": f"call_{self._made}", "function": call})]
        if fields["role"] == Role.TOOL and "tool_call_id" not in fields and self._open:
            named = [name for name, called in self._open if called == fields.get("name")]
            fields["tool_call_id"] = named[0] if named else self._open[0][0]


def to_arguments(value: object) -> str:
    """A call's arguments as the JSON text that a call has."""
    if isinstance(value, str):
        return value
    return raw_of(value).decode() if value is not None else "{}"


def joined_text(value: object, depth: int = _DEPTH) -> str:
    """The words of a text, of an object that holds one, or of a list of such, a paragraph each."""
    if isinstance(value, str):
        return value
    if depth and (items := as_list(value)):
        found = (joined_text(item, depth - 1) for item in items)
        return "\n\n".join(text for text in found if text)
    if depth and (fields := as_mapping(value)):
        found = (joined_text(fields.get(name), depth - 1) for name in _TEXTS)
        return next((text for text in found if text), "")
    return ""


def to_chat_part(part: object) -> object:
    """A part of an item's content as the chat-completions wire has it."""
    match dict(as_mapping(part)):
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "input_image", "image_url": str(url), **rest}:
            image = {"url": url, "detail": rest.get("detail") or "auto"}
            return {"type": "image_url", "image_url": image}
        case {"type": "input_image", **rest}:
            return {"type": "text", "text": f"[image {rest.get('file_id', '')}]"}
        case {"type": "input_file", **rest}:
            return {"type": "file", "file": rest}
        case _:
            return part


def _content(content: object) -> object:
    parts = as_list(content)
    return [to_chat_part(part) if _is_item_part(part) else part for part in parts] or content


def _is_item_part(part: object) -> bool:
    return as_mapping(part).get("type") in {"input_text", "output_text", "input_image"}


def _mend_names(fields: dict[str, Any]) -> None:
    """Ids and names are texts; what can't be one goes."""
    for name in ("id", "name", "tool_call_id"):
        value = fields.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            fields[name] = str(value)
        elif name in fields and (not isinstance(value, str) or (name == "id" and not value)):
            del fields[name]


def _mend_reasoning(fields: dict[str, Any], name: str) -> None:
    """Its words; an object without any stays whole, beside the message."""
    raw = fields.pop(name)
    if text := joined_text(raw):
        fields.setdefault("reasoning", text)
    else:
        fields.setdefault("reasoning_details", raw)


def _mend_call(call: object) -> object:
    if not as_mapping(call):
        return call
    fields = dict(as_mapping(call))
    if isinstance(call_id := fields.get("id"), int):
        fields["id"] = str(call_id)
    elif "id" in fields and not isinstance(call_id, str):
        del fields["id"]
    named = dict(as_mapping(fields, "function")) or fields
    if "args" in named and "arguments" not in named:
        named["arguments"] = named.pop("args")
    named["arguments"] = to_arguments(named.get("arguments"))
    if named is not fields:
        fields["function"] = named
    return fields
