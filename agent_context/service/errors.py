"""What goes wrong, as HTTP says it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from agent_context.errors import (
    AgentContextError,
    AskTimeout,
    BackendError,
    CompressionError,
    ContextFull,
    ConversationBusy,
    ConversationClosed,
    ConversationDeleted,
    ErrorKind,
    Fenced,
    ImportFailed,
    IndexOutOfRange,
    InvalidMessage,
    MailboxFull,
    OwnedByAnotherProcess,
    StoreError,
    TurnAborted,
    TurnTimeout,
    UnknownConversation,
    UsageError,
    VersionConflict,
)

__all__ = ["Problem", "ServiceError", "invalid", "not_found", "to_problem"]

INVALID = "invalid_request_error"
SERVER = "server_error"


class Problem(Struct, frozen=True, kw_only=True):
    """A failure as its client hears of it. Every surface words it in its own way."""

    status: int
    message: str
    type: str = INVALID
    """What OpenAI calls the type of an error."""
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    """Seconds."""

    def body(self) -> dict[str, Any]:
        """In OpenAI's form."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class ServiceError(AgentContextError):
    """The service refuses a request; nothing was changed."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> ServiceError:
    """The client asked for something that can't be."""
    return ServiceError(Problem(status=400, message=message, param=param, code=code))


def not_found(message: str, *, code: str = "not_found") -> ServiceError:
    """There is no such thing, or it is somebody else's: nobody may tell the two apart."""
    return ServiceError(Problem(status=404, message=message, code=code))


def _problem(status: int, code: str, kind: str = INVALID, retry: float | None = None) -> _Maker:
    return lambda error: Problem(
        status=status, message=str(error), type=kind, code=code, retry_after=retry
    )


_Maker = Callable[[Any], Problem]


def _import_failed(error: ImportFailed) -> Problem:
    line = f"line {error.line}" if error.line else None
    return Problem(status=400, message=str(error), code="import_failed", param=line)


def _store_failed(error: StoreError) -> Problem:
    retry = 1.0 if error.retryable else None
    status = 503 if error.retryable else 500
    text = str(error) if error.retryable else "what was kept of this can't be read"
    return Problem(status=status, message=text, type=SERVER, code="store_failed", retry_after=retry)


_BACKEND: dict[ErrorKind, tuple[int, str, str]] = {
    ErrorKind.AUTH: (502, SERVER, "vendor_refused_key"),
    ErrorKind.QUOTA: (502, SERVER, "vendor_quota_exhausted"),
    ErrorKind.RATE_LIMITED: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorKind.OVERLOADED: (503, SERVER, "vendor_overloaded"),
    ErrorKind.CONTEXT_OVERFLOW: (400, INVALID, "context_length_exceeded"),
    ErrorKind.CONTENT_FILTERED: (400, INVALID, "content_filter"),
    ErrorKind.UNSUPPORTED_PARAMETER: (400, INVALID, "unsupported_parameter"),
}


def _backend_failed(error: BackendError) -> Problem:
    status, kind, code = _BACKEND.get(error.kind, (502, SERVER, "vendor_failed"))
    return Problem(
        status=status, message=str(error), type=kind, code=code, retry_after=error.retry_after
    )


_BY_TYPE: tuple[tuple[type[Exception], _Maker], ...] = (
    (ServiceError, lambda error: error.problem),
    (IndexOutOfRange, _problem(400, "index_out_of_range")),
    (InvalidMessage, _problem(400, "invalid_message")),
    (UsageError, _problem(400, "invalid_request")),
    (ContextFull, _problem(400, "context_length_exceeded")),
    (ConversationBusy, _problem(409, "conversation_locked", retry=1.0)),
    (VersionConflict, _problem(412, "version_conflict")),
    (ConversationClosed, _problem(503, "draining", SERVER, retry=1.0)),
    (MailboxFull, _problem(429, "too_many_requests", "rate_limit_error", retry=1.0)),
    (TurnTimeout, _problem(504, "turn_timeout", SERVER)),
    (AskTimeout, _problem(504, "timeout", SERVER, retry=1.0)),
    (TurnAborted, _problem(409, "turn_cancelled")),
    (ImportFailed, _import_failed),
    (CompressionError, _problem(502, "compression_failed", SERVER)),
    (UnknownConversation, _problem(404, "conversation_not_found")),
    (ConversationDeleted, _problem(404, "conversation_not_found")),
    (Fenced, _problem(503, "owned_elsewhere", SERVER, retry=1.0)),
    (OwnedByAnotherProcess, _problem(503, "owned_elsewhere", SERVER, retry=1.0)),
    (StoreError, _store_failed),
    (BackendError, _backend_failed),
)
_UNKNOWN = Problem(
    status=500, message="the service failed: its log says why", type=SERVER, code="internal_error"
)


def to_problem(error: BaseException) -> Problem:
    """What the client hears: nothing of the inside, and no key of a vendor."""
    maker = next((make for kind, make in _BY_TYPE if isinstance(error, kind)), None)
    if maker is None:
        return _UNKNOWN
    problem = maker(error)
    clean = redact(problem.message)
    if clean == problem.message:
        return problem
    return Problem(
        status=problem.status,
        message=clean,
        type=problem.type,
        code=problem.code,
        param=problem.param,
        retry_after=problem.retry_after,
    )


_KEY_LIKE = re.compile(r"(?i)\b(bearer\s+|sk-|ac-)[\w\-.]{8,}")


def redact(text: str) -> str:
    """The text without what is, or looks like, a key."""
    for name, value in os.environ.items():
        if name.endswith(("_KEY", "_TOKEN")) and len(value) >= 8:
            text = text.replace(value, "[key]")
    return _KEY_LIKE.sub("[key]", text)
