"""The seam to a model: what a conversation asks of it, and what an adapter must provide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from agent_context._context.stored_message import StoredMessage, from_message, parse_message
from agent_context._context.tokens import count_message
from agent_context._context.zones import Zones
from agent_context._runtime import io_loop
from agent_context.messages import Completion, Message
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import StreamAccumulator, StreamEvent
from agent_context.wire.chat import parse_chunk, parse_messages
from agent_context.wire.dialect import Dialect
from agent_context.wire.rendering import RequestRenderer
from agent_context.wire.repair import STRICTEST_DIALECT, repair_history

if TYPE_CHECKING:
    from agent_context.agent import Agent

__all__ = ["ContextBackend", "Request"]

_CLOSING: Final = 5.0
"""Seconds that leaving a `with` block waits for connections to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One model call, complete and immutable."""

    conversation_id: str
    zones: Zones
    trailing: tuple[StoredMessage, ...] = ()
    """What follows the zones in this call only: scratch, or the prompt for a summary."""
    options: SendOptions
    facts: ModelFacts
    rendering: RequestRenderer = field(default_factory=RequestRenderer, repr=False)
    """The conversation's own cache of rendered bytes; a fresh one renders everything."""

    @property
    def records(self) -> list[StoredMessage]:
        """All messages of the request, in order, before any repair."""
        return [*self.zones, *self.trailing]


class ContextBackend(ABC):
    """A model behind an API. Only `send` and `send_stream` must be implemented.

    Both run on the library's I/O loop: they must not block it. A failure is raised as
    `BackendError`; any other exception reaches the caller as it is and is never retried.
    """

    vendor: ClassVar[str] = "custom"
    """The company or server behind the model. What only it understands is sent to no other."""
    dialect: ClassVar[Dialect] = STRICTEST_DIALECT
    """How stored messages are written for it."""
    agent_type: ClassVar[type[Agent] | None] = None
    """What `as_agent` makes: `agent_context.agent`, which stands above this, says it here."""

    @abstractmethod
    async def send(self, request: Request) -> Completion:
        """Ask the model and return its whole answer."""

    @abstractmethod
    def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        """Ask the model and yield events as they arrive, `Finished` last.

        An iterator that ends without `Finished` counts as a normal stop; a broken answer must
        raise. The iterator is closed (`aclose`) when the turn is cut short.
        """

    def model_facts(self, model: str | None) -> ModelFacts:
        """What is known of `model`, or of the backend's default model for None."""
        del model
        return ModelFacts(context_window=128_000, max_output=4_096)

    def response_formats(self, options: SendOptions) -> frozenset[str]:
        """The types of `response_format` that a turn with these options may ask for."""
        del options
        return frozenset({"text"})

    def user_message(self, text: str) -> Message:
        """Convert a user's text to a message."""
        return Message.user(text)

    def system_message(self, text: str) -> Message:
        """Convert instructions to a message."""
        return Message.system(text)

    def tool_message(self, tool_call_id: str, text: str) -> Message:
        """Convert a tool's result to a message."""
        return Message.tool(tool_call_id, text)

    def to_system_message(self, text: str) -> Message:
        """Convert a summary or a scratch text to a message."""
        return self.system_message(text)

    def to_request_messages(self, request: Request) -> tuple[Message, ...]:
        """The messages that go out, repaired so that any chat-completions API accepts them."""
        return tuple(record.message for record in repair_history(request.records))

    def extract_messages(self, response: Mapping[str, Any]) -> tuple[Message, ...]:
        """The messages in a whole answer as the API sent it."""
        return parse_messages(response, vendor=self.vendor)

    def classify_chunk(self, chunk: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
        """The events in one chunk of a streamed answer, as the API sent it."""
        return parse_chunk(chunk)

    def merge_chunks(self, chunks: Iterable[StreamEvent]) -> Message:
        """Merge events into the message that they make up."""
        assembly = StreamAccumulator.from_events(chunks)
        return assembly.completion.message if assembly.completion else assembly.to_message()

    def prefix_fields(self, request: Request) -> Mapping[str, object]:
        """The request fields, by name, that a prompt cache compares besides the messages.

        It may depend on the options `model`, `effort`, `thinking`, `tools`, `tool_choice`,
        `response_format` and `extra`. Where a value differs, the cache is not hit at all.
        """
        options = request.options
        names = ("model", "effort", "thinking", "tools", "tool_choice", "response_format")
        return {**{name: getattr(options, name) for name in names}, **options.extra}

    def estimate_tokens(self, message: Message, facts: ModelFacts) -> int:
        """Tokens that `message` costs in a request, its overhead included."""
        return count_message(message, facts)

    def message_to_json(self, message: Message) -> str:
        """The message as one line of JSON, with its id."""
        return from_message(message).to_json_line().decode()

    def message_from_json(self, text: str) -> Message:
        """The message that `message_to_json` wrote, or one in chat-completions form."""
        return parse_message(text)

    def as_agent(self, instructions: str | None = None, **described: Any) -> Agent:  # noqa: ANN401 - as Agent has them
        """An agent with this model; its arguments are those of `Agent`."""
        if self.agent_type is None:
            import_module("agent_context.agent")  # which says what an agent is
        assert self.agent_type is not None  # noqa: S101
        return self.agent_type(self, instructions, **described)

    async def aclose(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Close connections. Call it if you made the backend, or use it in an `async with`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        io_loop().spawn(self.aclose).wait(_CLOSING)
