"""The APIs that a server may speak, each as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

from agent_context.messages import Completion
from agent_context.stream_events import Finished, StreamEvent
from agent_context.wire import chat, messages, responses

__all__ = ["CHAT", "MESSAGES", "RESPONSES", "Api", "ApiChoice", "Reader", "merge_fields"]

ApiChoice = Literal["auto", "chat", "responses"]
"""Which API to speak; `auto` takes chat completions wherever they do what the options want."""


class Reader(Protocol):
    """Turns what a server streams into events, and at the end into a completion."""

    @property
    def done(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    def read(self, payload: bytes) -> list[StreamEvent]: ...
    def finish(self) -> Finished: ...


class _CompletionOf(Protocol):
    def __call__(
        self, response: Mapping[str, Any], *, vendor: str, request_id: str | None = None
    ) -> Completion: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """One of them."""

    name: Literal["chat", "responses", "messages"]
    ours: frozenset[str]
    """Fields that `extra` may not set: the request or its answer would be misread."""
    streaming: Mapping[str, Any]
    """The fields that ask for a stream."""
    reader: Callable[[str, str | None], Reader]
    """Reads a stream, from the vendor's name and the request's."""
    completion_of: _CompletionOf
    """Reads a whole answer."""


CHAT = Api(
    name="chat",
    ours=frozenset({"messages", "model", "stream"}),
    streaming={"stream": True, "stream_options": {"include_usage": True}},
    reader=chat.ChunkReader,
    completion_of=chat.parse_completion,
)
RESPONSES = Api(
    name="responses",
    ours=frozenset(
        {"input", "model", "stream", "background", "conversation", "previous_response_id"}
    ),
    streaming={"stream": True},
    reader=responses.ResponsesReader,
    completion_of=responses.parse_completion,
)
MESSAGES = Api(
    name="messages",
    ours=frozenset({"messages", "model", "stream", "system"}),
    streaming={"stream": True},
    reader=messages.MessagesReader,
    completion_of=messages.parse_completion,
)


def merge_fields(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` and `extra`; where both have an object, or both say what to include, both count.

    So `extra={"reasoning": {"summary": "auto"}}` leaves the effort that an option has set.
    """
    shared = {name: _both(fields[name], extra[name]) for name in fields.keys() & extra.keys()}
    if "include" in shared:
        shared["include"] = list(dict.fromkeys([*fields["include"], *extra["include"]]))
    return {**fields, **extra, **shared}


def _both(ours: object, theirs: object) -> object:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {**cast("dict[str, Any]", ours), **cast("dict[str, Any]", theirs)}
    return theirs
