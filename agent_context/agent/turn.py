"""The turn of the conversation that a run is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import pykka
from msgspec import Struct

from agent_context._runtime import Reply
from agent_context.errors import ConversationClosed
from agent_context.messages import Completion, Message
from agent_context.model_call import ModelMiddleware
from agent_context.options import SendOptions
from agent_context.protocol import Send, SendStream
from agent_context.ref import ContextRef, submit
from agent_context.stream import Stream
from agent_context.stream_events import StreamEvent
from agent_context.tools.loop import ToolLoopRunner

__all__ = ["Request", "Turn"]


class Request(Struct, frozen=True, kw_only=True):
    """What a run sends."""

    options: SendOptions
    messages: Sequence[Message] = ()
    context: Sequence[Message] = ()
    history: Sequence[Message] | None = None
    outgoing: Sequence[Message] | None = None


class Turn:
    """One turn, streamed or not, whose end can be waited for when it was cancelled."""

    def __init__(
        self, conversation: ContextRef, loop: ToolLoopRunner, around: ModelMiddleware | None
    ) -> None:
        self._conversation = conversation
        self._loop, self._around = loop, around
        self._reply: Reply[Completion] | None = None
        self._stream: Stream | None = None

    async def whole(self, request: Request) -> Completion:
        """The answer, in one piece."""
        send = Send(
            options=request.options,
            messages=request.messages,
            context=request.context,
            history=request.history,
            outgoing=request.outgoing,
            loop=self._loop,
            around=self._around,
        )
        try:
            self._reply = submit(self._conversation, send)
            return await self._reply
        except pykka.ActorDeadError:
            raise ConversationClosed(f"{self._conversation!r} was stopped") from None
        except asyncio.CancelledError:
            self._conversation.channel.cancel(send)
            raise

    async def streamed(self, request: Request, hear: Callable[[StreamEvent], object]) -> Completion:
        """The answer, and what arrives of it as it does."""
        send = SendStream(
            options=request.options,
            messages=request.messages,
            context=request.context,
            history=request.history,
            outgoing=request.outgoing,
            loop=self._loop,
            around=self._around,
        )
        self._stream = await self._conversation.aask(send)
        try:
            async for event in self._stream:
                hear(event)
        except asyncio.CancelledError:
            self._stream.cancel()
            raise
        return self._stream.completion

    async def over(self) -> None:
        """Wait until conversation and tools have done with the turn, however it ended."""
        if self._stream is not None:
            async with self._stream:
                pass
        if self._reply is not None:
            with contextlib.suppress(Exception):
                await self._reply
        await self._loop.over()
