"""What the answers of both APIs have in common: how they begin to be read, and how they fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import FinishReason, Message, ToolCall
from agent_context.wire.lenient_json import loads_lenient

__all__ = ["drop_incomplete_calls", "empty_response_error", "is_object", "parse_json_object"]

_FINISHED = (FinishReason.STOP, FinishReason.TOOL_CALLS)

_SAID_NOTHING = {
    "length": (ErrorKind.EMPTY_RESPONSE, False, "max_tokens was used up before it said anything"),
    "content_filter": (ErrorKind.CONTENT_FILTERED, False, "its answer was filtered"),
    "sensitive": (ErrorKind.CONTENT_FILTERED, False, "its answer was filtered"),
    "model_context_window_exceeded": (ErrorKind.CONTEXT_OVERFLOW, False, "the window is full"),
    "insufficient_system_resource": (ErrorKind.OVERLOADED, True, "the server ran out of resources"),
    "network_error": (ErrorKind.TRANSPORT, True, "the server lost its own connection"),
}
"""What an answer without any content means, by its finish reason: kind, retryable, why."""

_SAID_NOTHING["max_output_tokens"] = _SAID_NOTHING["length"]


def parse_json_object(payload: bytes, *, vendor: str, request_id: str | None) -> Mapping[str, Any]:
    """The object that one `data` payload is. `BackendError` for one that is none."""
    try:
        chunk = loads_lenient(payload)
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
    whole = tuple(call for call in message.tool_calls if _is_whole(call))
    return message.model_copy(update={"tool_calls": whole})


def is_object(text: str) -> bool:
    """Whether the JSON text is a whole object."""
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _is_whole(call: ToolCall) -> bool:
    return bool(call.name) and is_object(call.arguments)
