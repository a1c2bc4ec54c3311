"""A run as it goes on: updates for whoever listens, and the response at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self

from msgspec import Struct
from typing_extensions import TypeVar

from agent_context._runtime import finalizer_thread
from agent_context.errors import RunCancelled, UsageError
from agent_context.messages import FinishReason, Message, ToolCall, Usage
from agent_context.providers.response import AgentResponse
from agent_context.stream_events import (
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolRoundFinished,
    ToolRoundStarted,
)

__all__ = ["AgentStream", "AgentUpdate", "RunUpdates", "ToolProgress", "UpdateSink"]


class ToolProgress(Struct, frozen=True, kw_only=True):
    """What a running tool says of its work, by `ToolContext.report`."""

    call: ToolCall
    text: str


class AgentUpdate(Struct, frozen=True, kw_only=True):
    """What arrived in a run."""

    text: str = ""
    """More of the answer's text."""
    reasoning: str = ""
    """More of what the model thinks aloud."""
    tool_calls: Sequence[ToolCall] = ()
    """Calls, once they are whole and before they are carried out."""
    progress: ToolProgress | None = None
    """What a tool reports while it runs."""
    results: Sequence[Message] = ()
    """What came of the calls."""
    finish_reason: FinishReason | None = None
    """On the last update: why the model stopped."""
    usage: Usage | None = None
    """On the last update: what all model calls of the run cost."""

    def __str__(self) -> str:
        return self.text


UpdateSink = Callable[[AgentUpdate], object]


class RunUpdates:
    """Tells whoever listens to a run what happens in it, in order; nobody need listen.

    Made on the run's loop. A tool that is quick may report before the stream has come to its call:
    what it says waits for that.
    """

    def __init__(self, emit: UpdateSink | None) -> None:
        self._emit = emit
        self._loop = asyncio.get_running_loop()
        self._announced: set[str] = set()
        self._early: list[ToolProgress] = []

    def hear(self, event: StreamEvent) -> None:
        """Tell of what arrived, as far as it says anything to whoever listens to a run."""
        match event:
            case TextDelta(text) if text:
                self.tell(AgentUpdate(text=text))
            case ReasoningDelta(text) if text:
                self.tell(AgentUpdate(reasoning=text))
            case ToolRoundStarted(calls):
                self.start_calls(calls)
            case ToolRoundFinished(_, results):
                self.end_calls(results)
            case _:
                pass

    def start_calls(self, calls: Sequence[ToolCall]) -> None:
        """Tell of calls before they are carried out."""
        self.tell(AgentUpdate(tool_calls=tuple(calls)))
        self._announced = {call.id for call in calls}
        early, self._early = self._early, []
        for progress in early:
            if progress.call.id in self._announced:
                self.tell(AgentUpdate(progress=progress))

    def end_calls(self, results: Sequence[Message]) -> None:
        """Tell what came of them."""
        self._announced = set()
        self.tell(AgentUpdate(results=tuple(results)))

    def report(self, call: ToolCall, text: str) -> None:
        """Tell what a running tool says of its work. Any thread."""
        if self._emit is not None:
            progress = ToolProgress(call=call, text=text)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                self._loop.call_soon_threadsafe(self._tell_progress, progress)

    def _tell_progress(self, progress: ToolProgress) -> None:
        if progress.call.id in self._announced:
            self.tell(AgentUpdate(progress=progress))
        else:
            self._early.append(progress)

    def tell(self, update: AgentUpdate) -> None:
        """Hand over an update."""
        if self._emit is not None:
            self._emit(update)


V = TypeVar("V", default=Any)
_Driver = Callable[[UpdateSink], Coroutine[Any, Any, AgentResponse]]


class _UpdateQueue:
    """What the run has said and nobody has heard yet."""

    def __init__(self) -> None:
        self.waiting: asyncio.Queue[AgentUpdate | None] = asyncio.Queue()
        self.response: AgentResponse | None = None
        self.error: BaseException | None = None

    async def drive(self, run: _Driver) -> None:
        try:
            self.response = await run(self.waiting.put_nowait)
        except asyncio.CancelledError:
            self.error = RunCancelled("the run was cancelled before its end")
        except BaseException as error:  # noqa: BLE001 - raised where the stream is read
            self.error = error
        finally:
            self.waiting.put_nowait(None)


class AgentStream(Generic[V]):
    """A streamed run: `async for update in stream`, then `stream.response`.

    The run begins with the first update that is asked for. Iterating raises what went wrong, after
    all that had arrived. Leaving an `async with` block, `aclose`, or dropping the stream before
    the end cancels the run.
    """

    def __init__(self, run: _Driver) -> None:
        self._run = run
        self._feed = _UpdateQueue()
        self._task: asyncio.Task[None] | None = None
        self._over = False
        self._finalizer = finalizer_thread()

    @property
    def response(self) -> AgentResponse[V]:
        """What the run gave. Raises what ended it, `UsageError` while it goes on."""
        if self._feed.error is not None:
            raise self._feed.error
        if self._feed.response is None:
            raise UsageError("the run has not ended: iterate its stream to the end first")
        return self._feed.response

    async def get_final_response(self) -> AgentResponse[V]:
        """Let the run go on to its end, and return what it gave."""
        async for _ in self:
            pass
        return self.response

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentUpdate:
        if self._over:
            raise StopAsyncIteration
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._feed.drive(self._run))
        try:
            update = await self._feed.waiting.get()
        except asyncio.CancelledError:
            self._cancel()
            raise
        if update is not None:
            return update
        self._over = True
        if self._feed.error is not None:
            raise self._feed.error
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the run now, unless it has ended."""
        self._over = True
        self._cancel()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.shield(self._task)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def __del__(self) -> None:
        if self._task is not None and not self._task.done():
            self._finalizer.call_soon(partial(_cancel_from_outside, self._task))


def _cancel_from_outside(task: asyncio.Task[None]) -> None:
    with contextlib.suppress(RuntimeError):  # a closed loop has ended all of its tasks
        task.get_loop().call_soon_threadsafe(task.cancel)
