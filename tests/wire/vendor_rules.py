"""What OpenAI and Zhipu accept as messages, as small models of their own validators.

Written from what the vendors document and what their servers are reported to answer (platform
.openai.com and openai 3.57, 2026-11; docs.bigmodel.cn and docs.z.ai, 2026-10), not from this
library's code: they know neither its dialects nor its repair.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import orjson

Wire = list[dict[str, Any]]

_FUNCTION = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}")
_URL = re.compile(r"https?://.+|data:[^,;]+(;[^,;]+)*;base64,")

_FIELDS = {
    "developer": {"role", "content", "name"},
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "refusal", "audio", "tool_calls"},
    "tool": {"role", "content", "name", "tool_call_id"},
}
_OPENAI_PARTS = {
    "user": {"text", "image_url", "input_audio", "file"},
    "assistant": {"text", "refusal"},
}
_ZHIPU_ROLES = {"system", "user", "assistant", "tool"}
_ZHIPU_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "reasoning_content"}
_ZHIPU_SEEN = {"text", "image_url", "video_url", "file_url"}


def openai_refuses(messages: Wire) -> list[str]:
    """Everything that chat completions would answer with a 400."""
    found = [] if messages else ["'messages': empty array"]
    for at, message in enumerate(messages):
        found += [f"messages[{at}]: {fault}" for fault in _openai_message(message)]
    return found + list(_pairing(messages))


def zhipu_refuses(messages: Wire, *, sees: bool = False) -> list[str]:
    """Everything that is reported to be answered with 1213 or 1214; text models see nothing."""
    found: list[str] = []
    for at, message in enumerate(messages):
        found += [f"messages[{at}]: {fault}" for fault in _zhipu(message, sees)]
    roles = [message.get("role") for message in messages]
    if "user" not in roles:
        found.append("1214: there is no user message")
    found += [f"1214: {one} twice in a row" for one, two in pairwise(roles) if one == two != "tool"]
    return found + list(_pairing(messages))


def _openai_message(message: dict[str, Any]) -> Iterator[str]:
    role = message.get("role")
    if role not in _FIELDS:
        yield f"role {role!r}"
        return
    yield from (f"unknown field {name}" for name in message.keys() - _FIELDS[role])
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        yield "content: expected a string, got null"
    if isinstance(content, list):
        yield from _parts(content, _OPENAI_PARTS.get(role, {"text"}))
    if "name" in message and not _SPEAKER.fullmatch(message["name"]):
        yield f"name {message['name']!r}"
    yield from _calls(message, longest_id=40, exact=True)


def _zhipu(message: dict[str, Any], sees: bool) -> Iterator[str]:
    role = message.get("role")
    if role not in _ZHIPU_ROLES:
        yield "1214: Incorrect role information"
        return
    if role != "assistant":  # which may have fields that the server itself has sent
        yield from (f"unknown field {name}" for name in message.keys() - _ZHIPU_FIELDS)
    content = message.get("content")
    if isinstance(content, list):
        yield from _parts(content, _ZHIPU_SEEN if sees and role == "user" else {"text"})
    if role != "tool" and _is_empty(content) and not message.get("tool_calls"):
        yield "1213: no prompt" if role == "user" else "1214: content and tool_calls are empty"
    yield from _calls(message, longest_id=None, exact=False)


def _is_empty(content: object) -> bool:
    if isinstance(content, list):
        return all(part.get("type") == "text" and _is_empty(part.get("text")) for part in content)
    return not isinstance(content, str) or not content.strip()


def _parts(parts: list[dict[str, Any]], known: set[str]) -> Iterator[str]:
    if not parts:
        yield "content: empty array"
    for part in parts:
        kind = part.get("type")
        if kind not in known:
            yield f"content.type {kind!r}, one of {sorted(known)}"
        elif kind == "image_url" and not _URL.match(str(part["image_url"].get("url"))):
            yield f"image_url {part['image_url']}"
        elif kind == "image_url" and part["image_url"].keys() - {"url", "detail"}:
            yield f"unknown field in image_url: {sorted(part['image_url'])}"
        elif kind == "text" and not isinstance(part.get("text"), str):
            yield "text is no string"


def _calls(message: dict[str, Any], *, longest_id: int | None, exact: bool) -> Iterator[str]:
    if "tool_calls" not in message:
        return
    calls = message["tool_calls"]
    if message["role"] != "assistant":
        yield "tool_calls: only of an assistant"
    if not calls:
        yield "tool_calls: empty array"
    ids = [call.get("id") for call in calls]
    if len(set(ids)) < len(ids) or not all(ids):
        yield f"ids are not unique: {ids}"
    if longest_id and any(len(one) > longest_id for one in ids):
        yield f"an id is longer than {longest_id}: {ids}"
    for call in calls:
        if exact and call.keys() != {"id", "type", "function"}:
            yield f"fields of a call: {sorted(call)}"
        if call.get("type") != "function":
            yield f"type of a call: {call.get('type')!r}"
        if not _FUNCTION.fullmatch(call["function"]["name"]):
            yield f"function name {call['function']['name']!r}"
        if not isinstance(call["function"].get("arguments"), str):
            yield "arguments are no string"
        elif not _is_object(call["function"]["arguments"]):
            yield f"arguments are no JSON object: {call['function']['arguments']!r}"


def _is_object(text: str) -> bool:
    """Whether servers that parse arguments find an object in them (vllm#43995, llama.cpp#25510)."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _pairing(messages: Wire) -> Iterator[str]:
    """Calls must be answered at once, each of them once; a result must answer one."""
    due: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in due:
                yield f"tool: answers no preceding call: {message.get('tool_call_id')!r}"
            due.discard(str(message.get("tool_call_id")))
            continue
        if due:
            yield f"tool_calls without a result: {sorted(due)}"
        due = {str(call.get("id")) for call in message.get("tool_calls") or ()}
    if due:
        yield f"tool_calls without a result at the end: {sorted(due)}"
