"""What the session routes take and give."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import msgspec
import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zone, Zones
from agent_context.errors import InvalidMessage
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.service.conversations import Conversations, user_metadata
from agent_context.service.errors import invalid
from agent_context.stores.store import ConversationInfo

__all__ = [
    "AppendBody",
    "CompressBody",
    "CreateBody",
    "ForkBody",
    "MetadataBody",
    "RewindBody",
    "SendBody",
    "completion_json",
    "index_after",
    "message_json",
    "parse",
    "parse_version",
    "record_json",
    "session_json",
    "to_json",
]

ChatMessage = dict[str, Any]
"""A message in chat-completions form, or in this library's own."""


class _Body(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class CreateBody(_Body):
    """A new session."""

    id: str | None = None
    """None makes one up."""
    system: str | None = None
    """What the model should be and know: the immutable zone, which is never compressed."""
    messages: list[ChatMessage] = []
    """What was said already."""
    metadata: dict[str, Any] = {}


class MetadataBody(_Body):
    metadata: dict[str, Any]


class AppendBody(_Body):
    messages: list[ChatMessage] = Field(min_length=1)


class SendBody(_Body):
    """A turn: what is said, and how the model is asked."""

    text: str | None = None
    """What the user says; short for one message."""
    messages: list[ChatMessage] = []
    stream: bool = False
    background: bool = False
    """Answer at once with the turn, and let it run."""
    options: dict[str, Any] = {}
    """`SendOptions`: model, max_tokens, tools, temperature, on_busy, timeout, ..."""

    @model_validator(mode="after")
    def _check(self) -> SendBody:
        if self.text is not None and self.messages:
            raise ValueError("give text or messages, not both")
        return self

    def said(self) -> tuple[Message, ...]:
        """The messages. Raises `InvalidMessage`."""
        return (Message.user(self.text),) if self.text is not None else parse(self.messages)

    def send_options(self) -> SendOptions:
        """Raises `InvalidOptions`."""
        return SendOptions.model_validate(self.options)


class CompressBody(_Body):
    strategy: str | None = None
    """`summarize`, `sliding_window`, `token_budget` or `evict_tool_results`; None the usual one."""
    arguments: dict[str, Any] = {}
    """The strategy's own, as `keep` or `turns`."""


class ForkBody(_Body):
    id: str | None = None
    at: int | None = None
    """How many incremental messages the fork begins with; None for all."""
    message_id: str | None = None
    """The same by its last message."""


class RewindBody(_Body):
    to: int | None = None
    """How many incremental messages stay."""
    message_id: str | None = None
    """The same by the last one that stays."""


def parse(messages: list[ChatMessage]) -> tuple[Message, ...]:
    """Raises `InvalidMessage`, which says which."""
    parsed: list[Message] = []
    for number, raw in enumerate(messages):
        try:
            parsed.append(Message.from_dict(raw))
        except InvalidMessage as error:
            raise InvalidMessage(f"messages.{number}: {error}") from error
    return tuple(parsed)


def record_json(record: StoredMessage, **tags: str) -> orjson.Fragment:
    """A stored message as it is exported: chat-completions form with its id."""
    return orjson.Fragment(record.to_json_line(**tags))


def message_json(message: Message) -> orjson.Fragment:
    """The same of a message."""
    return record_json(from_message(message))


def completion_json(completion: Completion) -> dict[str, Any]:
    """A model's answer."""
    fields = completion.model_dump(mode="json", exclude={"message"})
    return {"message": message_json(completion.message), **fields}


def session_json(conversations: Conversations, info: ConversationInfo) -> dict[str, Any]:
    """What is known of a session without waking it."""
    parent = info.parent
    known = None
    if parent is not None:
        known = {"id": conversations.id_of(parent.id), "seq": parent.seq - 1}
    return {
        "id": conversations.id_of(info.id),
        "object": "session",
        "created_at": info.created_at,
        "updated_at": info.updated_at,
        "metadata": user_metadata(info),
        "parent": known,
    }


def to_json(value: object) -> Any:  # noqa: ANN401 - JSON
    """A struct, a dataclass or an event as JSON values."""
    return msgspec.to_builtins(value, enc_hook=_encode, str_keys=True)


def _encode(value: object) -> object:
    if isinstance(value, Message):
        return orjson.loads(from_message(value).to_json_line())
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return str(value)


def parse_version(if_match: str | None) -> int | None:
    """The version of an `If-Match` header; None without one."""
    if if_match is None or if_match.strip() == "*":
        return None
    text = if_match.strip().removeprefix("W/").strip('"')
    if not text.isdecimal():
        raise invalid(
            f'If-Match: the version that an ETag gave, as "12"; not {if_match!r}', param="If-Match"
        )
    return int(text)


def index_after(zones: Zones, message_id: str) -> int:
    """How many incremental messages there are up to this one. Raises `ServiceError`."""
    for index, record in enumerate(zones.zone(Zone.INCREMENTAL)):
        if record.id == message_id:
            return index + 1
    raise invalid(
        f"message_id: no message {message_id!r} in the incremental zone; it may be compressed",
        param="message_id",
    )
