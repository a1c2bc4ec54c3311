"""Turns that belong to their conversation, and not to the request that asked for them.

A turn is read by a task of its own, into a list that any number of streams may follow from any
place. Who goes away loses nothing, who comes back reads on, who is slow holds back nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final

from agent_context.errors import ConversationClosed, MailboxFull, TurnCancelled
from agent_context.messages import Completion, Message
from agent_context.protocol import Cancel, Conditional, SendStream
from agent_context.ref import ContextRef
from agent_context.service.errors import Problem, ServiceError
from agent_context.service.sse import Bell
from agent_context.stream import Stream
from agent_context.stream_events import (
    Finished,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
)

__all__ = ["LiveTurn", "TurnAsk", "TurnRegistry"]

_MOST_ENDED: Final = 1_000

_SAYS: Final = (TextDelta, ReasoningDelta, ToolCallDelta)

TurnAsk = SendStream | Conditional[Stream]


class LiveTurn:
    """One turn, as far as it has come."""

    def __init__(
        self, ref: ContextRef, bell: Bell, said: Sequence[Message] = (), *, model: str = ""
    ) -> None:
        self.ref = ref
        self.said = said
        self.model = model
        self.id = ""
        """As `Cancel` takes it; empty until the turn is accepted."""
        self.created_at = time.time()
        self.events: list[StreamEvent] = []
        self.completion: Completion | None = None
        self.error: BaseException | None = None
        self.done = False
        self.ended_at = 0.0
        """On the monotonic clock."""
        self.followers = 0
        self.ends_when_left = False
        """Whether nobody could find the answer any more once its followers have gone."""
        self.was_left = False
        self._bell = bell
        self._waiting: list[asyncio.Future[bool]] = []
        self._on_end: list[Callable[[LiveTurn], object]] = []

    def on_end(self, callback: Callable[[LiveTurn], object]) -> None:
        """Call this once the turn has ended, at once if it has."""
        if self.done:
            callback(self)
        else:
            self._on_end.append(callback)

    async def follow(self, after: int = 0) -> AsyncIterator[Sequence[StreamEvent]]:
        """The events behind the first `after`, as many at once as there are.

        An empty sequence means that nothing has come for a while. Raises what ended the turn,
        behind its last event, and `ConversationClosed` when the service stops.
        """
        self.followers += 1
        try:
            while True:
                if len(self.events) > after:
                    news = self.events[after:]
                    after += len(news)
                    yield news
                elif self.done:
                    break
                elif not await self._more():
                    self._check_open()
                    yield ()
            if self.error is not None:
                raise self.error
        finally:
            self.followers -= 1
            self._note_leaving()

    @property
    def is_abandoned(self) -> bool:
        """Whether it runs, and those who followed it have gone away."""
        return self.was_left and not self.followers and not self.done

    async def wait(self) -> Completion:
        """The whole answer. Raises what ended the turn."""
        async for _ in self.follow():
            pass
        if self.completion is None:
            raise TurnCancelled("the turn was cancelled")
        return self.completion

    async def wait_until_begun(self) -> None:
        """Wait for the first event, the end, or the time of a ping. Raises what ended it at once.

        So a request that is refused has its status, and one that takes long has its headers.
        """
        self.followers += 1
        try:
            if not self.events and not self.done:
                await self._more()
        finally:
            self.followers -= 1
        if self.error is not None and not self.events:
            raise self.error

    async def cancel(self) -> bool:
        """End the turn now, by its abort policy; False if it has ended."""
        return False if self.done or not self.id else await self.ref.aask(Cancel(self.id))

    def add(self, event: StreamEvent) -> None:
        """Take in what arrived."""
        if isinstance(event, Finished):
            self.completion = event.completion
            if not any(isinstance(earlier, _SAYS) for earlier in self.events):
                self.events += _deltas(event.completion.message)
        self.events.append(event)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows."""
        if self.done:
            return
        self.error, self.done, self.ended_at = error, True, time.monotonic()
        callbacks, self._on_end = self._on_end, []
        for callback in callbacks:
            callback(self)
        self._wake()

    def _note_leaving(self) -> None:
        if self.followers or self.done:
            return
        self.was_left = True
        if self.ends_when_left:
            self.ref.tell(Cancel(self.id))

    async def _more(self) -> bool:
        more: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(more)
        return await self._bell.wait(more)

    def _check_open(self) -> None:
        if self._bell.closed and not self.done:
            raise ConversationClosed("the service stops; the turn is kept as far as it has come")

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(True)


class TurnRegistry:
    """The turns that run, and those that have ended lately."""

    def __init__(self, bell: Bell, *, most: int, most_of_one: int, keep: float) -> None:
        """`keep` is how many seconds the events of an ended turn stay."""
        self._bell = bell
        self._most = most
        self._most_of_one = most_of_one
        self._keep = keep
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, list[LiveTurn]] = {}
        self._by_name: OrderedDict[str, LiveTurn] = OrderedDict()

    @property
    def running(self) -> int:
        """How many turns run or wait."""
        return sum(map(len, self._running.values()))

    def of(self, conversation_id: str) -> Sequence[LiveTurn]:
        """The turns of a conversation that run or wait, in the order in which they were asked."""
        return tuple(self._running.get(conversation_id, ()))

    def find(self, name: str) -> LiveTurn | None:
        """The turn that was given this name."""
        return self._by_name.get(name)

    def name(self, name: str, turn: LiveTurn) -> None:
        """Have the turn found by this name, until a while after its end."""
        self._forget_old()
        self._by_name[name] = turn

    async def start(self, ref: ContextRef, ask: TurnAsk, *, model: str = "") -> LiveTurn:
        """Begin a turn; returns when the conversation has accepted it. Raises why it has not."""
        self._check_room(ref.id)
        turn = LiveTurn(ref, self._bell, _said(ask), model=model)
        accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        accepted.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._running.setdefault(ref.id, []).append(turn)
        turn.on_end(self._remove)
        task = asyncio.create_task(_read(turn, ask, accepted))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Shielded: a client that leaves now has asked all the same.
        await asyncio.shield(accepted)
        return turn

    async def join(self, timeout: float) -> None:
        """Wait until every turn was read to its end, at most so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    def _check_room(self, conversation_id: str) -> None:
        if self.running >= self._most:
            text = f"{self._most} turns run or wait: the service takes no more now"
            raise ServiceError(
                Problem(
                    status=503, message=text, type="server_error", code="overloaded", retry_after=1
                )
            )
        if len(self.of(conversation_id)) >= self._most_of_one:
            raise MailboxFull(f"{self._most_of_one} turns of this conversation run or wait")

    def _remove(self, turn: LiveTurn) -> None:
        turns = self._running[turn.ref.id]
        turns.remove(turn)
        if not turns:
            del self._running[turn.ref.id]

    def _forget_old(self) -> None:
        before = time.monotonic() - self._keep
        for name, turn in list(self._by_name.items()):
            over = len(self._by_name) > _MOST_ENDED
            if turn.done and (over or turn.ended_at < before):
                del self._by_name[name]


def _said(ask: TurnAsk) -> Sequence[Message]:
    send = ask.command if isinstance(ask, Conditional) else ask
    return send.messages if isinstance(send, SendStream) else ()


async def _read(turn: LiveTurn, ask: TurnAsk, accepted: asyncio.Future[None]) -> None:
    try:
        stream = await turn.ref.aask(ask)
        turn.id = stream.turn_id
        if not accepted.done():
            accepted.set_result(None)
        async for event in stream:
            turn.add(event)
    except BaseException as error:
        turn.end(error)
        if not accepted.done():
            accepted.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        turn.end()


def _deltas(message: Message) -> Iterator[StreamEvent]:
    """What would have been streamed, of an answer that was given before and came whole."""
    if message.reasoning:
        yield ReasoningDelta(message.reasoning)
    if message.text:
        yield TextDelta(message.text)
    for index, call in enumerate(message.tool_calls):
        yield ToolCallDelta(index, call.id, call.name, call.arguments)
