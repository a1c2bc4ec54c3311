"""Messages, put together from what was said, thought, called and returned, in that order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from datetime import datetime
from typing import Final

from agent_context.imports.branches import MOST_BRANCHES
from agent_context.imports.result import ImportedConversation, Rejected, own_ids
from agent_context.messages import FinishReason, Message, MessageId, Origin, Role, ToolCall, new_id

__all__ = ["MOST_BRANCHES", "TranscriptBuilder", "build_conversation"]


class TranscriptBuilder:
    """A conversation on its way to messages."""

    def __init__(self, vendor: str) -> None:
        self.vendor: Final = vendor
        self.time: datetime | None = None
        """When that was written which is added next."""
        self.model = ""
        """Which model says what is added next."""
        self._said: list[Message] = []
        self._times: list[datetime | None] = []
        self._thoughts: list[str] = []
        self._open: list[str] = []
        self._answered = ""
        self._results: dict[str, int | None] = {}

    def copy(self) -> TranscriptBuilder:
        """Another one that has the same so far, and goes on by itself."""
        other = TranscriptBuilder(self.vendor)
        vars(other).update({name: copy(value) for name, value in vars(self).items()})
        return other

    def close(self) -> None:
        """Nothing more follows what was thought last: its answer was stopped before it began."""
        if self._thoughts:
            self._open, self._answered = [], ""
            stopped = {"interrupted": True, "finish_reason": FinishReason.INTERRUPTED}
            self._add(self._answer("").model_copy(update=stopped), "")

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages so far."""
        return tuple(own_ids(self._said))

    @property
    def times(self) -> tuple[datetime | None, ...]:
        """When each of them was written."""
        return tuple(self._times)

    def add_user(self, role: Role, text: str, message_id: MessageId) -> None:
        """A user, or instructions, said this; nothing at all is no message."""
        if text.strip():
            self.close()
            self._open, self._answered = [], ""
            message = Message.user(text) if role is Role.USER else Message.system(text)
            self._add(message, message_id)

    def add_reasoning(self, text: str) -> None:
        """The model thought this before what it says or calls next."""
        if text.strip():
            self._thoughts.append(text)

    def add_assistant(
        self, text: str, message_id: MessageId, *, finish: FinishReason | None = None
    ) -> None:
        """The model said this."""
        if text.strip():
            self._open, self._answered = [], ""
            interrupted = finish is FinishReason.INTERRUPTED
            update = {"finish_reason": finish, "interrupted": interrupted}
            self._add(self._answer(text).model_copy(update=update), message_id)

    def add_call(self, call: ToolCall, message_id: MessageId) -> None:
        """The model called a tool. A call right behind what it said is of the same message."""
        last = self._said[-1] if self._said else None
        if last is None or last.role is not Role.ASSISTANT or self._thoughts:
            self._add(self._answer(""), message_id)
            last = self._said[-1]
        self._said[-1] = last.model_copy(update={"tool_calls": (*last.tool_calls, call)})
        self._open.append(call.id)
        self._results[call.id] = None

    def add_result(self, text: str, name: str, message_id: MessageId, *, call_id: str = "") -> None:
        """A tool returned this: what the call with this id did, or else the first open one.

        What comes after that belongs to the call that was answered last; and what no call has led
        to gets one, or it could not be sent again.
        """
        if call_id not in self._results:
            call_id = self._open[0] if self._open else self._answered
        if not call_id:
            call_id = message_id
            self.add_call(ToolCall(id=call_id, name=name or "tool"), f"{message_id}/call")
        self._open = [each for each in self._open if each != call_id]
        self._answered = call_id
        place = self._results[call_id]
        if place is None:
            self._results[call_id] = len(self._said)
            self._add(Message.tool(call_id, text), message_id)
        else:
            whole = Message.tool(call_id, f"{self._said[place].text}\n\n{text}")
            self._said[place] = whole.model_copy(update={"id": self._said[place].id})

    def _answer(self, text: str) -> Message:
        message = Message.assistant(text, reasoning="\n\n".join(self._thoughts) or None)
        self._thoughts = []
        return message.model_copy(update={"origin": Origin(vendor=self.vendor, model=self.model)})

    def _add(self, message: Message, message_id: MessageId) -> None:
        self._said.append(message.model_copy(update={"id": message_id or new_id()}))
        self._times.append(self.time)


def build_conversation(
    ways: Sequence[list[str]],
    add: Callable[[str, TranscriptBuilder], None],
    *,
    vendor: str,
    id: str,
    title: str,
    created: datetime | None,
) -> Iterator[ImportedConversation | Rejected]:
    """The conversation with these ways from its beginning to an end, of which the first counts.

    `add` adds what a node says to a transcript of what was said by the nodes before it; `vendor`
    is whose model answers.
    """
    if not ways:
        return
    for way in ways[MOST_BRANCHES + 1 :]:
        yield Rejected(
            f"the ending {way[-1]}", b"", f"more than {MOST_BRANCHES} other endings aren't read"
        )
    main, *others = _transcripts(ways[: MOST_BRANCHES + 1], add, vendor)
    yield ImportedConversation(
        main.messages,
        id=id,
        title=title,
        created=created,
        times=main.times,
        branches=tuple(other.messages for other in others if other.messages),
    )


def _transcripts(
    ways: Sequence[list[str]], add: Callable[[str, TranscriptBuilder], None], vendor: str
) -> list[TranscriptBuilder]:
    """One for each way. What several ways have in common is read once."""
    starts = _shared_lengths(ways)
    forks = {way[start - 1] for way, start in zip(ways, starts, strict=True) if start}
    at_fork: dict[str, TranscriptBuilder] = {}
    built: list[TranscriptBuilder] = []
    for way, start in zip(ways, starts, strict=True):
        transcript = at_fork[way[start - 1]].copy() if start else TranscriptBuilder(vendor)
        for name in way[start:]:
            add(name, transcript)
            if name in forks:
                at_fork[name] = transcript.copy()
        transcript.close()
        built.append(transcript)
    return built


def _shared_lengths(ways: Sequence[list[str]]) -> list[int]:
    """How much of its beginning each way has in common with one of those before it."""
    seen: set[str] = set()
    lengths: list[int] = []
    for way in ways:
        length = len(way)
        while length and way[length - 1] not in seen:
            length -= 1
        lengths.append(length)
        seen.update(way)
    return lengths
