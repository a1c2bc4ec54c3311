"""The consumer's end of a streamed turn.

Events go straight from the I/O loop into the turn's own bounded buffer: a consumer that is slow
holds back the socket and nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self
from weakref import WeakKeyDictionary

from agent_context._runtime import LONGEST_WAIT, finalizer_thread
from agent_context.errors import TurnCancelled, UsageError
from agent_context.messages import Completion, Message
from agent_context.stream_events import Finished, StreamEvent, TextDelta

__all__ = ["Channel", "Stream", "TextStream"]

_CAPACITY = 256
_CLOSING = 5.0


class Channel:
    """A bounded pipe from the I/O loop to one consumer, on any thread or loop."""

    __slots__ = (
        "_buffer",
        "_lock",
        "_resume",
        "_wake",
        "completion",
        "ended",
        "error",
        "partial_message",
    )

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffer: deque[StreamEvent] = deque()
        self._wake: Callable[[], object] | None = None
        self._resume: Callable[[], object] | None = None
        self.ended = False
        self.error: BaseException | None = None
        self.completion: Completion | None = None
        self.partial_message: Message | None = None

    async def put(self, event: StreamEvent) -> None:
        """Hand an event over; waits while the consumer is more than a buffer behind."""
        with self._lock:
            self._buffer.append(event)
            wake, self._wake = self._wake, None
            full = len(self._buffer) >= _CAPACITY
        if wake is not None:
            wake()
        if full:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        loop = asyncio.get_running_loop()
        drained = asyncio.Event()
        with self._lock:
            if len(self._buffer) < _CAPACITY or self.ended:
                return
            self._resume = lambda: loop.call_soon_threadsafe(drained.set)
        await drained.wait()

    def end(
        self,
        *,
        completion: Completion | None = None,
        error: BaseException | None = None,
        kept: Message | None = None,
    ) -> None:
        """End the stream. `kept` is the message that the turn stored."""
        with self._lock:
            if self.ended:
                return
            self.completion, self.error, self.partial_message = completion, error, kept
            if completion is not None:
                self._buffer.append(Finished(completion))
            self.ended = True
            wake, self._wake = self._wake, None
            resume, self._resume = self._resume, None
        for call in (wake, resume):
            if call is not None:
                call()

    def take(self, wake: Callable[[], object]) -> list[StreamEvent] | None:
        """All waiting events; None if there are none yet: `wake` is called once there are.

        An empty list means the end.
        """
        with self._lock:
            events = list(self._buffer)
            self._buffer.clear()
            if not events and not self.ended:
                self._wake = wake
                return None
            resume, self._resume = self._resume, None
        if resume is not None:
            resume()
        return events


class Stream:
    """A streamed turn: a context manager, and an iterator for threads and for event loops.

    Iterating yields `StreamEvent`s as they arrive and then raises what went wrong, if anything
    did. The conversation has stored the answer when `Finished` comes out. Leaving the `with`
    block, or dropping the stream, before the end cancels the turn.
    """

    def __init__(self, turn_id: str, channel: Channel, cancel: Callable[[], object]) -> None:
        self.turn_id = turn_id
        self._channel = channel
        self._cancel = cancel
        self._ahead: deque[StreamEvent] = deque()
        self._chunks: list[StreamEvent] = []
        self._over = False
        self._cancelled_by_consumer = False
        self._finalizer = finalizer_thread()

    @property
    def message(self) -> Message:
        """The stored message: the answer, or the part of it that was kept.

        Raises the turn's error if nothing was stored, `UsageError` while it still runs.
        """
        channel = self._ended_channel()
        if channel.completion is not None:
            return channel.completion.message
        if channel.partial_message is not None:
            return channel.partial_message
        raise channel.error or TurnCancelled("the turn was cancelled and left nothing")

    @property
    def completion(self) -> Completion:
        """The whole answer. Raises the turn's error if there is none."""
        channel = self._ended_channel()
        if channel.completion is not None:
            return channel.completion
        raise channel.error or TurnCancelled("the turn was cancelled")

    def _ended_channel(self) -> Channel:
        if not self._channel.ended:
            raise UsageError("the stream has not ended: iterate it to the end first")
        return self._channel

    def cancel(self) -> None:
        """End the turn now; iteration stops after what has arrived. Any thread may call it."""
        if not self._channel.ended:
            self._cancelled_by_consumer = True
            self._cancel()

    def is_done_probe(self) -> Callable[[], bool]:
        """A function that says whether the turn has ended, without keeping the stream alive."""
        channel = self._channel
        return lambda: channel.ended

    def take_chunks(self) -> list[StreamEvent]:
        """The events that were iterated since the last call, for `backend.merge_chunks`."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamEvent:
        while not self._ahead:
            ready = threading.Event()
            events = self._channel.take(ready.set)
            if events is None:
                while not ready.wait(LONGEST_WAIT):
                    pass  # a signal that comes right before a wait doesn't end it
            elif not self._take_in(events):
                raise StopIteration
        return self._next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._ahead:
            if (events := await self._take()) is not None and not self._take_in(events):
                raise StopAsyncIteration
        return self._next()

    async def _take(self) -> list[StreamEvent] | None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        events = self._channel.take(partial(_waker_for(loop).wake, ready))
        if events is None:
            await ready
        return events

    def _take_in(self, events: list[StreamEvent]) -> bool:
        """Whether there was anything; raises the turn's error at the end."""
        self._ahead.extend(events)
        if events:
            return True
        error = self._channel.error
        if error is not None and not self._over:
            self._over = True
            if not (self._cancelled_by_consumer and isinstance(error, TurnCancelled)):
                raise error
        return False

    def _next(self) -> StreamEvent:
        event = self._ahead.popleft()
        self._chunks.append(event)
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
        ready = threading.Event()
        while (events := self._channel.take(ready.set)) != []:
            if events is None and not ready.wait(_CLOSING):
                return
            ready.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING):
                while await self._take() != []:
                    pass

    def __del__(self) -> None:
        if not self._channel.ended:
            self._finalizer.call_soon(self._cancel)


class TextStream:
    """The words of a streamed answer: `for text in …`, or `async for` on an event loop.

    Iterating begins the turn, and raises what goes wrong. Leaving a `with` block, or dropping it,
    before the end cancels the turn.
    """

    def __init__(
        self, start: Callable[[], Stream], astart: Callable[[], Awaitable[Stream]]
    ) -> None:
        self._start, self._astart = start, astart
        self._stream: Stream | None = None

    @property
    def completion(self) -> Completion:
        """The whole answer. Raises the turn's error if there is none."""
        if self._stream is None:
            raise UsageError("the stream has not begun: iterate it to the end first")
        return self._stream.completion

    def cancel(self) -> None:
        """End the turn now; iteration stops after what has arrived. Any thread may call it."""
        if self._stream is not None:
            self._stream.cancel()

    def __iter__(self) -> Iterator[str]:
        if self._stream is None:
            self._stream = self._start()
        for event in self._stream:
            if isinstance(event, TextDelta) and event.text:
                yield event.text

    async def __aiter__(self) -> AsyncIterator[str]:
        if self._stream is None:
            self._stream = await self._astart()
        async for event in self._stream:
            if isinstance(event, TextDelta) and event.text:
                yield event.text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            await self._stream.__aexit__(kind, error, trace)


class _LoopWaker:
    """Wakes the consumers on one loop, many of them with one call from the I/O thread."""

    __slots__ = ("_lock", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._lock = threading.Lock()
        self._waiting: list[asyncio.Future[None]] = []

    def wake(self, ready: asyncio.Future[None]) -> None:
        with self._lock:
            first = not self._waiting
            self._waiting.append(ready)
        loop = self._loop()
        if first and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for ready in waiting:
            if not ready.done():  # its task may have been cancelled
                ready.set_result(None)


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWaker] = WeakKeyDictionary()


def _waker_for(loop: asyncio.AbstractEventLoop) -> _LoopWaker:
    found = _by_loop.get(loop)
    if found is None:
        found = _by_loop[loop] = _LoopWaker(loop)
    return found
