"""Checkpoints of running turns, so that a crash doesn't lose what was already paid for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw, Struct

from agent_context._context.stored_message import StoredMessage, from_line, from_message
from agent_context.errors import InvalidOptions, StoreCorrupt
from agent_context.messages import Message, MessageId, ToolCall
from agent_context.stores.write_check import check_text

__all__ = [
    "CALL_EFFECT_UNKNOWN",
    "CALL_NOT_RUN",
    "TurnCheckpoint",
    "check_key",
    "close_calls",
    "complete_results",
    "decode_checkpoint",
    "encode_checkpoint",
    "make_question_key",
]

_RESERVED = "\x1f"
"""Begins the keys that the library makes itself."""

CALL_NOT_RUN = "[interrupted] The call was not carried out: its turn was cut short."
CALL_EFFECT_UNKNOWN = (
    "[interrupted] The turn was cut short while the call was carried out: whether it had an effect "
    "is not known."
)


class TurnCheckpoint(Struct, frozen=True):
    """What is known of a running turn."""

    turn_id: str
    keep: bool
    """Whether what is here outlives the turn if it is cut short."""
    pending_messages: Sequence[StoredMessage] = ()
    """What the turn said and has not stored yet."""
    after: MessageId | None = None
    """The last stored message that its request held; None if it held none."""
    answer: Message | None = None
    """What had arrived."""
    executing_tools: bool = False
    """Whether the answer's calls are being carried out."""
    results: Sequence[Message] = ()
    """Of those calls, as far as they are there."""
    answers_own_calls: bool = False
    """Whether the turn answers calls itself, and so leaves none of them open."""
    key: str | None = None
    """The idempotency key of what was asked."""

    def answer_and_results(self) -> tuple[Message, ...]:
        """What to keep if the turn ends here: the answer so far and the results of its calls."""
        if not self.keep:
            return ()
        said = tuple(record.message for record in self.pending_messages)
        if self.answer is None:
            return said
        if not self.answers_own_calls:
            return (*said, self.answer)
        return (
            *said,
            *close_calls(
                self.answer,
                self.results,
                CALL_EFFECT_UNKNOWN if self.executing_tools else CALL_NOT_RUN,
            ),
        )


def make_question_key(key: str) -> str:
    """The key under which a question asked with `key` is found when a crash left it unanswered."""
    return f"{_RESERVED}question of {key}"


def check_key(key: str) -> None:
    """Refuse an idempotency key that is too long or reserved. Raises `InvalidOptions`."""
    check_text("key", key)
    if key.startswith(_RESERVED):
        raise InvalidOptions(f"key {key!r}: keys that begin with {_RESERVED!r} are reserved")


class _Form(Struct):
    turn: str
    keep: bool
    said: list[Raw]
    after: str | None
    answer: Raw
    """`null` if there is none."""
    calling: bool
    results: list[Raw]
    closes: bool
    key: str | None = None


def encode_checkpoint(draft: TurnCheckpoint) -> bytes:
    """Encode a checkpoint as a JSON object."""
    form = _Form(
        draft.turn_id,
        draft.keep,
        [Raw(record.to_json_line()) for record in draft.pending_messages],
        draft.after,
        Raw(b"null" if draft.answer is None else from_message(draft.answer).to_json_line()),
        draft.executing_tools,
        [Raw(from_message(message).to_json_line()) for message in draft.results],
        draft.answers_own_calls,
        draft.key,
    )
    return msgspec.json.encode(form)


def decode_checkpoint(text: bytes) -> TurnCheckpoint:
    """Decode what `encode_checkpoint` wrote. Raises `StoreCorrupt`."""
    try:
        form = msgspec.json.decode(text, type=_Form)
        said = tuple(from_line(bytes(raw)) for raw in form.said)
        line = bytes(form.answer)
        answer = None if line == b"null" else from_line(line).message
        results = tuple(from_line(bytes(raw)).message for raw in form.results)
    except (msgspec.MsgspecError, ValueError, LookupError) as error:
        raise StoreCorrupt(f"the turn that was running can't be read: {error}") from error
    return TurnCheckpoint(
        form.turn,
        form.keep,
        said,
        form.after,
        answer,
        form.calling,
        results,
        form.closes,
        form.key,
    )


def close_calls(answer: Message, results: Sequence[Message], text: str) -> tuple[Message, ...]:
    """The answer, and a result for each of its calls: `text` where none has arrived."""
    return (answer, *complete_results(answer.tool_calls, results, text))


def complete_results(
    calls: Iterable[ToolCall], results: Iterable[Message], otherwise: str
) -> list[Message]:
    """One result per call: the one that has arrived, or this text."""
    known: dict[str | None, deque[Message]] = defaultdict(deque)
    for result in results:
        known[result.tool_call_id].append(result)
    return [
        known[call.id].popleft() if known[call.id] else Message.tool(call.id, otherwise)
        for call in calls
    ]
