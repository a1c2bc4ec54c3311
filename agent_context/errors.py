"""The errors of this library, by who can act on them.

AgentContextError
├── UsageError                the program asked for something impossible
│   ├── IndexOutOfRange         (also an IndexError)
│   ├── InvalidMessage
│   ├── InvalidOptions
│   └── DeadlockError           an ask from inside a callback of the same conversation
├── ContextFull                 the request doesn't fit the model's window
├── ConversationBusy            a turn is running and the options say not to wait
├── VersionConflict             the conversation has changed since it was looked at
├── ConversationClosed          the conversation was stopped, or belongs to another process
├── MailboxFull                 more messages than the conversation can take: slow down
├── AskTimeout                  (also a TimeoutError) no answer in time; the work goes on
├── TurnAborted                 the turn ended before the model did
│   ├── GuardrailTripped        a guardrail refused what was said or answered
│   ├── UsageLimitExceeded      the run would have used more than it may
│   ├── TurnCancelled
│   │   └── RunCancelled        an agent's run was cancelled, or its stream closed early
│   └── TurnTimeout             (also a TimeoutError)
├── ImportFailed                a text or a file to be imported can't be read
├── CompressionError            nothing was compressed, nothing was changed
├── StoreError                  a conversation could not be saved or loaded; see `retryable`
│   ├── Fenced                  another process owns the conversation now: open it again
│   ├── OwnedByAnotherProcess   another live process owns it
│   ├── StoreUnavailable        locked, full or unreachable: a retry may succeed
│   ├── StoreCorrupt            what was saved can't be read
│   ├── UnknownConversation
│   └── ConversationDeleted
├── ToolError                   raised by a tool; the model reads its text
│   └── PathNotAllowed          the path is outside what the tool may touch
├── InvalidOutput               an answer that isn't of the requested type
├── SkillError                  a skill can't be loaded or used; the text says why
└── BackendError                the model's side refused or failed; `kind` says how
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Final

__all__ = [
    "AgentContextError",
    "AskTimeout",
    "BackendError",
    "CompressionError",
    "ContextFull",
    "ConversationBusy",
    "ConversationClosed",
    "ConversationDeleted",
    "DeadlockError",
    "ErrorKind",
    "Fenced",
    "GuardrailTripped",
    "ImportFailed",
    "IndexOutOfRange",
    "InvalidMessage",
    "InvalidOptions",
    "InvalidOutput",
    "MailboxFull",
    "OwnedByAnotherProcess",
    "PathNotAllowed",
    "RunCancelled",
    "SkillError",
    "StoreCorrupt",
    "StoreError",
    "StoreUnavailable",
    "ToolError",
    "TurnAborted",
    "TurnCancelled",
    "TurnTimeout",
    "UnknownConversation",
    "UsageError",
    "UsageLimitExceeded",
    "VersionConflict",
]


class AgentContextError(Exception):
    """Root of everything that this library raises on purpose."""


class UsageError(AgentContextError):
    """The program asked for something impossible; nothing was changed."""


class IndexOutOfRange(UsageError, IndexError):
    """The index names no message of the zone or view that was asked."""

    def __init__(self, index: int, length: int) -> None:
        super().__init__(f"index {index} is out of range: there are {length} messages")
        self.index = index
        self.length = length

    def __reduce__(self) -> tuple[type[IndexOutOfRange], tuple[int, int]]:
        return type(self), (self.index, self.length)


class InvalidMessage(UsageError):
    """A message that can't be stored; the text says which field is wrong and why."""


class InvalidOptions(UsageError):
    """Options, arguments or a request that can't be carried out as given."""


class DeadlockError(UsageError):
    """An ask from inside a callback of the same conversation; use `tell` there."""


class ContextFull(AgentContextError):
    """The request and the room reserved for its answer don't fit the window. Figures are tokens."""

    def __init__(
        self,
        *,
        needed: int,
        window: int,
        reserve: int,
        immutable: int,
        compressed: int,
        incremental: int,
        scratch: int,
        tools: int,
        instructions: int = 0,
        why: str,
    ) -> None:
        super().__init__(
            f"the request needs {needed} tokens (immutable {immutable}, compressed {compressed}, "
            f"incremental {incremental}, instructions {instructions}, scratch {scratch}, "
            f"tools {tools}) and reserves {reserve} "
            f"for the answer; the window has {window}: {why}"
        )
        self.needed = needed
        self.window = window
        self.reserve = reserve
        self.immutable = immutable
        self.compressed = compressed
        self.incremental = incremental
        self.scratch = scratch
        self.tools = tools
        self.instructions = instructions
        self.why = why

    def __reduce__(self) -> tuple[Callable[..., ContextFull], tuple[()]]:
        return partial(type(self), **self.__dict__), ()


class ConversationBusy(AgentContextError):
    """A turn is running (or too many wait) and the options say not to wait."""


class VersionConflict(AgentContextError):
    """The zones have changed since the version that a command was meant for."""

    def __init__(self, expected: int, version: int) -> None:
        super().__init__(f"the conversation is at version {version}, not at {expected}")
        self.expected = expected
        self.version = version
        """What it is at now."""

    def __reduce__(self) -> tuple[type[VersionConflict], tuple[int, int]]:
        return type(self), (self.expected, self.version)


class ConversationClosed(AgentContextError):
    """The conversation was stopped, or belongs to another process."""


class MailboxFull(AgentContextError):
    """The conversation's mailbox is full; try again later."""


class AskTimeout(AgentContextError, TimeoutError):
    """No answer within the ask's timeout. The message was accepted and is still being handled."""


class TurnAborted(AgentContextError):
    """The turn ended before the model did."""


class GuardrailTripped(TurnAborted):
    """A guardrail refused what was said, or what the model answered: the text says why."""


class UsageLimitExceeded(TurnAborted):
    """The run would have used more than its `UsageLimits` allow."""


class TurnCancelled(TurnAborted):
    """Somebody cancelled the turn: `Cancel`, an interrupting send, a closed stream, a stop."""


class RunCancelled(TurnCancelled):
    """An agent's run was cancelled, or its stream closed, before the end."""


class TurnTimeout(TurnAborted, TimeoutError):
    """The turn's deadline (`SendOptions.timeout`, seconds) passed."""


class ImportFailed(AgentContextError):
    """A text or file to be imported can't be read; the conversation is unchanged."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}" if line else why)
        self.line = line
        """Counted from 1; 0 when the text or the file as a whole is at fault."""
        self.why = why

    def __reduce__(self) -> tuple[type[ImportFailed], tuple[int, str]]:
        return type(self), (self.line, self.why)


class CompressionError(AgentContextError):
    """The compression failed; the zones are unchanged."""


class StoreError(AgentContextError):
    """A conversation could not be saved or loaded. What was acknowledged before is safe."""

    retryable = False
    """Whether a retry may succeed, after getting the conversation from its host again."""
    completion: Any = None
    """The `Completion` of a turn whose answer arrived but could not be stored; otherwise None."""


class Fenced(StoreError):
    """Another process owns the conversation now, or it was deleted; nothing was written."""

    retryable = True


class OwnedByAnotherProcess(StoreError):
    """Another live process owns the conversation."""

    retryable = True

    def __init__(self, conversation_id: str, owner: str) -> None:
        super().__init__(f"conversation {conversation_id} is owned by {owner}, which is alive")
        self.conversation_id = conversation_id
        self.owner = owner

    def __reduce__(self) -> tuple[type[OwnedByAnotherProcess], tuple[str, str]]:
        return type(self), (self.conversation_id, self.owner)


class StoreUnavailable(StoreError):
    """The store is locked, full or can't be reached."""

    retryable = True


class StoreCorrupt(StoreError):
    """Stored data can't be read, or its schema is unknown to this version."""


class UnknownConversation(StoreError):
    """The store has no conversation with this id."""


class ConversationDeleted(StoreError):
    """The conversation was deleted; its id is never given out again."""


class ToolError(AgentContextError):
    """Raised by a tool to tell the model why it can't do what was asked."""


class InvalidOutput(AgentContextError):
    """A model's answer is not of the requested type. The text tells the model what to correct."""


class PathNotAllowed(ToolError):
    """The path is outside what may be touched, or names no regular file; nothing was changed."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name!r}: {why}")
        self.name = name
        self.why = why

    def __reduce__(self) -> tuple[type[PathNotAllowed], tuple[str, str]]:
        return type(self), (self.name, self.why)


class SkillError(AgentContextError):
    """A skill can't be loaded or used; the text says which, why, and what to do."""


class ErrorKind(StrEnum):
    """What a backend's failure means for the caller."""

    AUTH = "auth"
    QUOTA = "quota"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    CONTEXT_OVERFLOW = "context_overflow"
    CONTENT_FILTERED = "content_filtered"
    HISTORY_REJECTED = "history_rejected"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    EMPTY_RESPONSE = "empty_response"
    TRANSPORT = "transport"
    PROTOCOL = "protocol"
    UNKNOWN = "unknown"


_RETRYABLE = frozenset(
    {ErrorKind.RATE_LIMITED, ErrorKind.OVERLOADED, ErrorKind.EMPTY_RESPONSE, ErrorKind.TRANSPORT}
)


class BackendError(AgentContextError):
    """The model's side refused or failed."""

    def __init__(
        self,
        message: str,
        *,
        kind: ErrorKind = ErrorKind.UNKNOWN,
        vendor: str = "",
        status: int | None = None,
        code: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        retryable: bool | None = None,
        window: int | None = None,
        needed: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.vendor = vendor
        self.status = status
        """HTTP status, if there was an answer."""
        self.code = code
        """The vendor's own code, as a string."""
        self.request_id = request_id
        self.retry_after = retry_after
        """Seconds to wait before trying again, if the vendor said so."""
        self.retryable = kind in _RETRYABLE if retryable is None else retryable
        """Whether the same request may succeed later."""
        self.window = window
        """On an overflow: tokens that the model takes, if the server said so."""
        self.needed = needed
        """On an overflow: tokens that were asked of it, if the server said so."""


_FORMER_NAMES: Final[Mapping[str, type[AgentContextError]]] = {
    "OwnedElsewhere": OwnedByAnotherProcess,
    "PathRefused": PathNotAllowed,
    "UsageMistake": UsageError,
    "WouldDeadlock": DeadlockError,
}
"""What version 0.1 called these: errors that it pickled are looked up under their names."""


def __getattr__(name: str) -> object:
    if name in _FORMER_NAMES:
        return _FORMER_NAMES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
