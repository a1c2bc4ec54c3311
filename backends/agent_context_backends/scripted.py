"""A backend that answers from a script: for tests of programs that use conversations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import ClassVar, cast

from agent_context.backend import ContextBackend, Request
from agent_context.errors import AgentContextError
from agent_context.messages import Completion, FinishReason, Message, Origin, Usage
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    UsageReported,
)

__all__ = ["Hold", "ScriptEnded", "ScriptItem", "ScriptedBackend"]

_PIECES = 4
"""Text deltas that a scripted text arrives in, if it has that many characters."""


class Hold:
    """Stops an answer until it is released. Any thread may wait, release and ask.

    On its own in a script it holds the next answer; among stream events, what follows there.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        """Set once an answer has come to this place."""
        self._lock = threading.Lock()
        self._released = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    @property
    def released(self) -> bool:
        return self._released

    def release(self) -> None:
        """Let the answer go on; later ones don't stop here any more."""
        with self._lock:
            self._released = True
            waiting, self._waiting = self._waiting, []
        for loop, event in waiting:
            loop.call_soon_threadsafe(event.set)

    async def wait(self) -> None:
        """Stop here until released."""
        gate = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            if not self._released:
                self._waiting.append(gate)
            held = not self._released
        self.entered.set()
        try:
            if held:
                await gate[1].wait()
        finally:
            with self._lock:
                self._waiting = [other for other in self._waiting if other is not gate]


class ScriptEnded(AgentContextError):
    """The model was asked more often than the script has answers."""


_Step = StreamEvent | Hold | Exception
_Answer = str | Message | Completion | Exception | Sequence[_Step]
_Item = _Answer | Callable[[Request], _Answer]
ScriptItem = _Item | Hold
"""A text, a message, a completion, an exception to raise, stream events with holds and exceptions
among them, what makes one of these from the request, or a hold before the next item."""


class ScriptedBackend(ContextBackend):
    """Answers with one item of its script after the other, whether streamed or not."""

    vendor: ClassVar[str] = "scripted"

    def __init__(
        self,
        script: Iterable[ScriptItem] = (),
        *,
        delay: float = 0.0,
        facts: ModelFacts | None = None,
    ) -> None:
        """`delay` is in seconds, before each answer and each event of it."""
        self.requests: list[Request] = []
        """What was asked, oldest first."""
        self._script: Iterator[ScriptItem] = iter((script,) if isinstance(script, str) else script)
        self._lock = threading.Lock()
        self._delay = delay
        self._facts = facts or super().model_facts(None)

    def model_facts(self, model: str | None) -> ModelFacts:
        """The facts that were given, whatever the model."""
        del model
        return self._facts

    def response_formats(self, options: SendOptions) -> frozenset[str]:
        """All: the script knows what was asked for."""
        del options
        return frozenset({"text", "json_object", "json_schema"})

    async def send(self, request: Request) -> Completion:
        """The next answer of the script."""
        events = [event async for event in self.send_stream(request)]
        return cast("Finished", events[-1]).completion

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        """The next answer of the script, in pieces."""
        assembly = StreamAccumulator(Origin(vendor=self.vendor, model=request.options.model or ""))
        for item in await self._next(request):
            await asyncio.sleep(self._delay)
            if isinstance(item, Hold):
                await item.wait()
                continue
            if isinstance(item, Exception):
                raise item
            assembly.add(item)
            yield item
        if assembly.completion is None:
            yield Finished(self._completion(assembly, request))

    async def _next(self, request: Request) -> Sequence[_Step]:
        with self._lock:
            self.requests.append(request)
            holds, item = self._take()
        for hold in holds:
            await hold.wait()
        return self._steps(item(request) if callable(item) else item, request)

    def _take(self) -> tuple[list[Hold], _Item]:
        holds: list[Hold] = []
        for item in self._script:
            if not isinstance(item, Hold):
                return holds, item
            holds.append(item)
        asked = len(self.requests)
        raise ScriptEnded(f"the script has no answer to request {asked}: it has {asked - 1}")

    def _steps(self, answer: _Answer, request: Request) -> Sequence[_Step]:
        if isinstance(answer, str):
            answer = Message.assistant(answer)
        if isinstance(answer, Message):
            answer = self._complete(answer, request)
        if isinstance(answer, Completion):
            reported = UsageReported(answer.usage)
            return [*_pieces(answer.message), reported, Finished(answer)]
        return [answer] if isinstance(answer, Exception) else answer

    def _complete(self, message: Message, request: Request) -> Completion:
        reason = message.finish_reason or _reason(message)
        origin = message.origin or Origin(vendor=self.vendor, model=request.options.model or "")
        message = message.model_copy(update={"finish_reason": reason, "origin": origin})
        return Completion(
            message=message,
            finish_reason=reason,
            raw_finish_reason=reason.value,
            usage=self._usage(message, request),
            model=origin.model,
        )

    def _completion(self, assembly: StreamAccumulator, request: Request) -> Completion:
        completion = self._complete(assembly.to_message(), request)
        if assembly.usage == Usage():
            return completion
        return completion.model_copy(update={"usage": assembly.usage})

    def _usage(self, answer: Message, request: Request) -> Usage:
        asked = sum(self.estimate_tokens(record.message, self._facts) for record in request.records)
        return Usage(input_tokens=asked, output_tokens=self.estimate_tokens(answer, self._facts))


def _reason(message: Message) -> FinishReason:
    return FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP


def _pieces(message: Message) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    if message.reasoning:
        events.append(ReasoningDelta(message.reasoning))
    text = message.text
    size = max(1, -(-len(text) // _PIECES))
    events.extend(TextDelta(text[start : start + size]) for start in range(0, len(text), size))
    for index, call in enumerate(message.tool_calls):
        half = len(call.arguments) // 2
        events.append(ToolCallDelta(index, call.id, call.name, call.arguments[:half]))
        events.append(ToolCallDelta(index, arguments=call.arguments[half:]))
    return events
