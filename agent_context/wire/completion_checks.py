"""What the answers of both APIs have in common: how they begin to be read, and how they fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import FinishReason, Message, ToolCall, Usage
from agent_context.wire.arguments import is_object
from agent_context.wire.lenient_json import loads_lenient

__all__ = [
    "drop_incomplete_calls",
    "empty_response_error",
    "is_whole",
    "later_usage",
    "parse_json_object",
    "reported_error",
]

_FINISHED = (FinishReason.STOP, FinishReason.TOOL_CALLS)

_SAID_NOTHING = {
    "length": (ErrorKind.EMPTY_RESPONSE, False, "max_tokens was used up before it said anything"),
    "content_filter": (ErrorKind.CONTENT_FILTERED, False, "its answer was filtered"),
    "refusal": (ErrorKind.CONTENT_FILTERED, False, "the model refused to answer"),
    "sensitive": (ErrorKind.CONTENT_FILTERED, False, "its answer was filtered"),
    "model_context_window_exceeded": (ErrorKind.CONTEXT_OVERFLOW, False, "the window is full"),
    "insufficient_system_resource": (ErrorKind.OVERLOADED, True, "the server ran out of resources"),
    "network_error": (ErrorKind.TRANSPORT, True, "the server lost its own connection"),
}
"""What an answer without any content means, by its finish reason: kind, retryable, why."""

_SAID_NOTHING["max_output_tokens"] = _SAID_NOTHING["max_tokens"] = _SAID_NOTHING["length"]


def parse_json_object(payload: bytes, *, vendor: str, request_id: str | None) -> Mapping[str, Any]:
    """The object that one `data` payload is. `BackendError` for one that is none."""
    try:
        chunk = loads_lenient(payload, fragment=True)
    except ValueError as error:
        start = payload[:80].decode("utf-8", "replace")
        raise BackendError(
            f"a chunk is not JSON: {start!r}",
            kind=ErrorKind.PROTOCOL,
            vendor=vendor,
            request_id=request_id,
        ) from error
    if type(chunk) is not dict:
        raise BackendError(
            f"a chunk is no object: {chunk!r:.80}",
            kind=ErrorKind.PROTOCOL,
            vendor=vendor,
            request_id=request_id,
        )
    return cast("Mapping[str, Any]", chunk)


def empty_response_error(
    reason: str | None, *, vendor: str, request_id: str | None
) -> BackendError:
    """The error that an answer without any content is."""
    kind, retryable, why = _SAID_NOTHING.get(
        reason or "", (ErrorKind.EMPTY_RESPONSE, True, f"finish reason {reason!r}")
    )
    return BackendError(
        f"the model answered with nothing: {why}",
        kind=kind,
        vendor=vendor,
        code=reason,
        request_id=request_id,
        retryable=retryable,
    )


def drop_incomplete_calls(message: Message, reason: FinishReason) -> Message:
    """The message; if it wasn't finished, without calls that are not whole."""
    if reason in _FINISHED:
        return message
    whole = tuple(call for call in message.tool_calls if is_whole(call))
    return message.model_copy(update={"tool_calls": whole})


def is_whole(call: ToolCall) -> bool:
    """Whether a call has a name and one JSON object as its arguments."""
    return bool(call.name) and is_object(call.arguments)


_COMPLAINTS = ("message", "msg", "detail", "errors", "error_msg", "error_message", "error_code")
"""Where a chunk that says nothing else says what went wrong."""

_HEALTHY = frozenset({"0", "200", "ok", "success"})


def reported_error(chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> object:
    """The error that a chunk reports in any of its shapes; None if it reports none."""
    if error := chunk.get("error") or choice.get("error"):
        return error
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return chunk
    if chunk.get("choices") or str(chunk.get("code", "")).lower() in _HEALTHY:
        return None
    return chunk if any(chunk.get(name) for name in _COMPLAINTS) else None


def later_usage(before: Usage, after: Usage) -> Usage:
    """`after`, but for figures that it has lost: a zero is no news where there was a figure."""
    lost = {
        name: figure
        for name in Usage.model_fields
        if (figure := getattr(before, name)) and not getattr(after, name)
    }
    return after.model_copy(update=lost) if lost else after
