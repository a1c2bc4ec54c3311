"""Messages and their parts, and a model's answer with its usage."""

from __future__ import annotations

import base64
import os
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from agent_context.errors import InvalidMessage

__all__ = [
    "Completion",
    "Cost",
    "FinishReason",
    "ImagePart",
    "Message",
    "MessageId",
    "OpaquePart",
    "Origin",
    "Part",
    "Role",
    "TextPart",
    "ToolCall",
    "TurnUsage",
    "Usage",
    "describe_validation_error",
    "new_id",
]

MessageId = str
"""A message's id. It never changes: not by saving, loading, exporting or forking."""


_random = random.Random()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_random.seed)  # or both processes give the same ids


def new_id() -> MessageId:
    """96 random bits as 16 URL-safe characters."""
    return base64.urlsafe_b64encode(_random.randbytes(12)).decode("ascii")


def describe_validation_error(error: ValidationError) -> str:
    """Pydantic's errors on one line, each with its path: `tool_calls.0.name: …`."""
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'value'}: {item['msg']}" for item in error.errors()
    )


class Role(StrEnum):
    """Who a message is from."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class FinishReason(StrEnum):
    """Why the model stopped. Only `stop` and `tool_calls` mean a complete answer."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    INTERRUPTED = "interrupted"
    OTHER = "other"


class _FrozenModel(BaseModel):
    """A frozen value that keeps fields it doesn't know."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="allow", hide_input_in_errors=True
    )


class TextPart(_FrozenModel):
    """Text."""

    kind: Literal["text"] = "text"
    text: str


class ImagePart(_FrozenModel):
    """An image, by address or as a `data:` URL."""

    kind: Literal["image"] = "image"
    url: str
    detail: str | None = None
    """How closely the model should look, in the vendor's words: low, high, auto."""
    width: int | None = None
    """Pixels, if known: tokens are counted by size."""
    height: int | None = None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return _without_bytes(super().__repr_args__())


class OpaquePart(_FrozenModel):
    """A part that is passed on unread: audio, files, a vendor's own kinds."""

    kind: Literal["other"] = "other"
    data: dict[str, Any]
    """The part as the chat-completions wire has it, `type` included."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        return _without_bytes(super().__repr_args__())


Part = Annotated[TextPart | ImagePart | OpaquePart, Field(discriminator="kind")]
"""A piece of a message's content, told apart by `kind`."""


class ToolCall(_FrozenModel):
    """A tool call that the model requests."""

    id: str
    name: str
    arguments: str = "{}"
    """The raw JSON text as the model wrote it; it may be invalid."""


class Origin(_FrozenModel):
    """The vendor and model that an assistant message came from."""

    vendor: str
    model: str = ""


class Message(_FrozenModel):
    """One message. Also built from the chat-completions form, `{"role": …, "content": …}`.

    Unknown fields are kept. Raises `InvalidMessage` for anything that isn't a message.
    """

    id: MessageId = Field(default_factory=new_id, min_length=1)
    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    """The model's reasoning before its answer, if the vendor shows it."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On a tool message: the call that it answers."""
    name: str | None = None
    interim: bool = False
    """On a tool message: the final result is still to come, and the call stays open for it."""
    interrupted: bool = False
    """The turn was cut short; the message holds what had arrived."""
    leaked_markup: bool = False
    """The text contains a tool call in the model's own markup that its server failed to parse."""
    finish_reason: FinishReason | None = None
    origin: Origin | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _raise_invalid_message(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            message = handler(_from_chat_form(data))
        except ValidationError as error:
            raise InvalidMessage(f"not a message: {describe_validation_error(error)}") from error
        _check_role(message)
        return message

    @classmethod
    def system(cls, text: str) -> Self:
        """A system message: instructions for the model."""
        return cls(role=Role.SYSTEM, parts=_parts(text))

    @classmethod
    def user(cls, content: str | Part | Iterable[str | Part], *, name: str | None = None) -> Self:
        """A user message: a text, or texts and images in order."""
        return cls(role=Role.USER, parts=_parts(content), name=name)

    @classmethod
    def assistant(
        cls,
        content: str | Part | Iterable[str | Part] = "",
        *,
        tool_calls: Iterable[ToolCall] = (),
        reasoning: str | None = None,
    ) -> Self:
        """An assistant message: text, tool calls, or both."""
        return cls(
            role=Role.ASSISTANT,
            parts=_parts(content),
            tool_calls=_calls(tool_calls),
            reasoning=reasoning,
        )

    @classmethod
    def tool(
        cls, tool_call_id: str, text: str, *, name: str | None = None, interim: bool = False
    ) -> Self:
        """The result of the call `tool_call_id`. An `interim` one is replaced by the final one."""
        result = cls(role=Role.TOOL, parts=_parts(text), tool_call_id=tool_call_id, name=name)
        return result.model_copy(update={"interim": True}) if interim else result

    @property
    def text(self) -> str:
        """All text parts joined."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def extra(self) -> dict[str, Any]:
        """Fields that this library doesn't know, unchanged."""
        return dict(self.model_extra or {})

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON values, its id included; `from_dict` gives the same message back."""
        unset = self.__class__.model_fields.keys() - self.model_fields_set - {"id"}
        return self.model_dump(mode="json", exclude=unset)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The message that `to_dict` wrote, or one in chat-completions form.

        Raises `InvalidMessage`.
        """
        return cls.model_validate(data)


class Usage(_FrozenModel):
    """What a model call cost, in tokens. A figure that the vendor didn't report is None."""

    input_tokens: int | None = None
    """All input, cached tokens included."""
    output_tokens: int | None = None
    """All output, reasoning included."""
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @classmethod
    def total(cls, usages: Iterable[Usage]) -> Usage:
        """The sum; a figure that none of them has is None."""
        several = [usage.model_dump() for usage in usages]
        names = dict.fromkeys(
            name for fields in several for name in cls.model_fields if name in fields
        )
        known = {n: [fields[n] for fields in several if fields[n] is not None] for n in names}
        return cls(**{name: sum(figures) for name, figures in known.items() if figures})


class Cost(_FrozenModel):
    """An amount of money."""

    amount: float
    currency: str = "USD"


class TurnUsage(_FrozenModel):
    """What a whole turn used: its model calls, those of tool rounds and summaries included."""

    calls: int
    usage: Usage = Usage()
    cost: Cost | None = None
    """None if the price of a call isn't known, or the vendor reported no usage."""


class Completion(_FrozenModel):
    """A model's whole answer."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    raw_finish_reason: str | None = None
    """The vendor's own word."""
    usage: Usage = Usage()
    model: str = ""
    """The model that answered, which may not be the one that was asked for."""
    model_changed: bool = False
    """Another model answered than was asked for; a dated version of the same one is no other."""
    request_id: str | None = None
    turn: TurnUsage | None = None
    """What the turn that it ends used; None as a backend gives it."""

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the message."""
        return self.message.tool_calls

    def __str__(self) -> str:
        return self.message.text

    @property
    def leaked_markup(self) -> bool:
        """Whether a tool call arrived as text; see `Message.leaked_markup`."""
        return self.message.leaked_markup


def _check_role(message: Message) -> None:
    if (message.role is Role.TOOL) != (message.tool_call_id is not None):
        raise InvalidMessage(
            "not a message: tool_call_id: a tool message names the call it answers, and no other "
            f"does (role {message.role.value!r}, tool_call_id {message.tool_call_id!r})"
        )
    if message.interim and message.role is not Role.TOOL:
        raise InvalidMessage(
            f"not a message: interim: only a tool's result can be, not {message.role.value!r}"
        )
    if message.tool_calls and message.role is not Role.ASSISTANT:
        raise InvalidMessage(
            f"not a message: tool_calls: only an assistant calls tools, not {message.role.value!r}"
        )


_SHOWN: Final = 60
"""Characters of a text in a part that logs and tracebacks show."""


def _without_bytes(fields: Iterable[tuple[str | None, Any]]) -> Iterator[tuple[str | None, Any]]:
    return ((name, _shorten(value)) for name, value in fields)


def _shorten(value: object) -> object:
    match value:
        case str() if len(value) > _SHOWN:
            head, found, _ = value.partition(";base64,")
            return f"{head}{found}…" if found else f"{value[:_SHOWN]}…"
        case dict():
            return {key: _shorten(each) for key, each in cast("dict[str, object]", value).items()}
        case _:
            return value


def _parts(content: object) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(text=content),) if content else ()
    if isinstance(content, BaseModel):
        return (cast("Part", content),)
    if (items := _items(content)) is not None:
        return tuple(map(_part, items))
    raise InvalidMessage(f"content is text or parts, not {_kind(content)}")


def _items(value: object) -> Iterable[object] | None:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    return cast("Iterable[object]", value)


def _kind(value: object) -> str:
    return type(value).__name__


def _part(item: object) -> Part:
    if isinstance(item, TextPart | ImagePart | OpaquePart):
        return item
    if isinstance(item, str):
        return TextPart(text=item)
    if isinstance(item, Mapping):
        return _part_from_chat_form(dict(cast("Mapping[str, Any]", item)))
    raise InvalidMessage(f"a part of a message is text or a part, not {_kind(item)}")


def _part_from_chat_form(raw: dict[str, Any]) -> Part:
    match raw:
        case {"type": "text", "text": str(text), **rest}:
            return TextPart(text=text, **rest)
        case {"type": "image_url", "image_url": {"url": str(url), **rest}} if len(raw) == 2:
            return ImagePart(url=url, **cast("dict[str, Any]", rest))
        case {"type": str()}:
            return OpaquePart(data=raw)
        case _:
            raise InvalidMessage(f"a part of a message has a type; this one has {sorted(raw)}")


_SAYING = frozenset({"content", "parts", "tool_calls", "reasoning", "reasoning_content"})
_MISNAMED = frozenset({"contents", "text", "body", "value", "message", "input", "prompt"})
"""Fields in which other libraries keep a message's text."""


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse a message whose text is in a misnamed field and would be lost."""
    if any(fields.get(name) is not None for name in _SAYING):
        return
    unknown = [
        name
        for name, value in fields.items()
        if name not in Message.model_fields and value not in (None, "", [], {})
    ]
    asks = fields.get("role") in (Role.SYSTEM, Role.USER, Role.TOOL, "developer")
    if misplaced := [name for name in unknown if asks or name in _MISNAMED]:
        raise InvalidMessage(
            f"not a message: content: it says nothing, and {', '.join(misplaced)} is no field of a "
            'message: write content="…", content=[{"type": "text", "text": "…"}, …], or '
            "Message.user(…)"
        )


def _calls(calls: object) -> tuple[ToolCall, ...]:
    if (items := _items(calls)) is not None:
        return tuple(map(_call, items))
    raise InvalidMessage(f"tool_calls: a list of calls, not {_kind(calls)}")


def _call(item: object) -> ToolCall:
    if isinstance(item, ToolCall):
        return item
    if not isinstance(item, Mapping):
        raise InvalidMessage(f"tool_calls: a call is a ToolCall, not {_kind(item)}")
    fields = dict(cast("Mapping[str, Any]", item))
    function = fields.pop("function", None)
    if isinstance(function, Mapping):
        fields.pop("type", None)
        fields.pop("index", None)
        fields |= _function_fields(cast("Mapping[str, Any]", function))
    try:
        return ToolCall.model_validate({"id": "", **fields})
    except ValidationError as error:
        raise InvalidMessage(f"tool_calls: {describe_validation_error(error)}") from error


def _function_fields(function: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a call from those of its function; what is unknown stays under `function`."""
    known = {name: value for name, value in function.items() if name in {"name", "arguments"}}
    rest = {name: value for name, value in function.items() if name not in known}
    return {**known, "function": rest} if rest else known


def _from_chat_form(data: object) -> object:
    """Fields of `Message` from a chat-completions message; anything else as it is."""
    if not isinstance(data, Mapping):
        return data
    fields = dict(cast("Mapping[str, Any]", data))
    _check_fields(fields)
    if fields.get("role") == "developer":
        fields["role"] = Role.SYSTEM
    if "content" in fields and "parts" not in fields:
        content = fields.pop("content")
        fields["parts"] = () if content is None else _parts(content)
    if (calls := fields.pop("tool_calls", None)) is not None:
        fields["tool_calls"] = _calls(calls)
    if (thought := fields.pop("reasoning_content", None)) is not None:
        fields.setdefault("reasoning", thought)
    return fields
