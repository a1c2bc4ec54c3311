"""A service at work: what all its routes share."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Final
from weakref import WeakValueDictionary

import orjson
from fastapi import Depends, Header, Query, Request

from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.protocol import Conditional, SendStream
from agent_context.ref import ContextRef
from agent_context.service.auth import KeyFile, Principal, Scope
from agent_context.service.catalog import Catalog
from agent_context.service.changes import ChangeWatch
from agent_context.service.config import ServiceConfig
from agent_context.service.conversations import Conversations
from agent_context.service.errors import Problem, ServiceError
from agent_context.service.metrics import Metrics
from agent_context.service.sse import Bell, EventStream
from agent_context.service.transcripts import Transcripts
from agent_context.service.turns import LiveTurn, TurnAsk, TurnRegistry

__all__ = [
    "Admin",
    "IdempotencyKey",
    "IfMatch",
    "Limit",
    "Reader",
    "Running",
    "Service",
    "Writer",
    "turn_name",
]

_KEYS_SEEN: Final = 10_000


class Service:
    """The parts of a service, put together, and what its surfaces do with them."""

    def __init__(self, config: ServiceConfig) -> None:
        self.config = config
        self.catalog = Catalog(config.models)
        self.conversations = Conversations(config, self.catalog)
        self.keys = None if config.keys is None else KeyFile(config.keys)
        self.bell = Bell(config.ping)
        bounds = config.bounds
        self.turns = TurnRegistry(
            self.bell,
            most=bounds.turns,
            most_of_one=bounds.turns_per_conversation,
            keep=config.keep_turns,
        )
        self.transcripts = Transcripts(config, self.conversations, self.turns)
        self.host = self.conversations.host
        self.metrics = Metrics(
            live=lambda: len(self.host.active_ids()), turns=lambda: self.turns.running
        )
        self.watch = ChangeWatch(self.bell)
        self.host.subscribe(self.watch)
        self.host.subscribe(self.transcripts.note)
        self.host.subscribe(self.metrics.count_event)
        self.draining = False
        self._streams: dict[str, int] = {}
        self._asked: OrderedDict[str, bytes] = OrderedDict()
        self._key_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # Models.

    def options(self, options: SendOptions) -> SendOptions:
        """The options, with a model that there is. Raises `ServiceError` (404)."""
        if options.model is not None and self.catalog.find(options.model) is None:
            raise ServiceError(
                Problem(
                    status=404,
                    message=f"there is no model {options.model!r}: {', '.join(self.catalog.names)}",
                    code="model_not_found",
                    param="model",
                )
            )
        return options

    def model_name(self, options: SendOptions) -> str:
        """What the client calls the model that answers."""
        return options.model or self.catalog.default

    # Turns.

    async def begin_turn(
        self,
        ref: ContextRef,
        *,
        messages: Sequence[Message] = (),
        options: SendOptions,
        key: str | None = None,
        version: int | None = None,
    ) -> LiveTurn:
        """Begin a turn, or find the one that was begun with this idempotency key.

        One that has failed is begun anew: it has left nothing that the key could stand for.
        """
        options = self.options(options)
        send = SendStream(options, messages, key=key)
        ask = send if version is None else Conditional(send, version)
        if key is None:
            return await self._start(ref, ask, options)
        name = f"{ref.id}\n{key}"
        async with self._key_locks.setdefault(name, asyncio.Lock()):
            found = self.turns.find(name)
            if found is not None and found.error is None:
                return found
            turn = await self._start(ref, ask, options)
            self.turns.name(name, turn)
            return turn

    async def _start(self, ref: ContextRef, ask: TurnAsk, options: SendOptions) -> LiveTurn:
        turn = await self.turns.start(ref, ask, model=self.model_name(options))
        self.turns.name(turn_name(ref.id, turn.id), turn)
        turn.on_end(self._count_turn)
        return turn

    def _count_turn(self, turn: LiveTurn) -> None:
        if turn.completion is not None:
            self.metrics.count_tokens(turn.model, turn.completion)

    def check_key(self, ref: ContextRef, key: str | None, body: object) -> None:
        """Raises `ServiceError` (422) if the key was used for another body lately."""
        if key is None:
            return
        name, digest = f"{ref.id}\n{key}", hashlib.sha256(orjson.dumps(body)).digest()
        if self._asked.setdefault(name, digest) != digest:
            text = f"Idempotency-Key: {key!r} was used with another body"
            raise ServiceError(
                Problem(
                    status=422, message=text, code="idempotency_key_reused", param="Idempotency-Key"
                )
            )
        if len(self._asked) > _KEYS_SEEN:
            self._asked.popitem(last=False)

    # Streams.

    def open_stream(
        self,
        principal: Principal,
        frames: AsyncIterator[bytes],
        headers: Mapping[str, str] | None = None,
    ) -> EventStream:
        """A response of frames. Raises `ServiceError` (429) past the bound of the key."""
        most, key = self.config.bounds.streams_per_key, principal.key_id
        if self._streams.get(key, 0) >= most:
            text = f"{most} streams of this key are open"
            raise ServiceError(
                Problem(
                    status=429,
                    message=text,
                    type="rate_limit_error",
                    code="too_many_streams",
                    retry_after=1,
                )
            )
        self._streams[key] = self._streams.get(key, 0) + 1
        self.metrics.streams.inc()
        return EventStream(frames, headers, on_close=lambda: self._close_stream(key))

    def _close_stream(self, key: str) -> None:
        self.metrics.streams.dec()
        self._streams[key] -= 1
        if not self._streams[key]:
            del self._streams[key]

    # The end.

    def stop_intake(self) -> None:
        """Refuse what is new, and end the streams: what runs goes on."""
        self.draining = True
        self.bell.close()

    async def close(self) -> None:
        """Let turns end, keep what they have, let go of conversations, store and models."""
        self.stop_intake()
        await self.host.adrain(self.config.drain)
        await self.turns.join(1.0)
        for backend in self.catalog.backends:
            await backend.aclose()


def turn_name(key: str, turn_id: str) -> str:
    """Under which a turn is registered."""
    return f"{key}\n\n{turn_id}"


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


def _reader(request: Request) -> Principal:
    return _principal(request, "read")


def _writer(request: Request) -> Principal:
    return _principal(request, "write")


def _admin(request: Request) -> Principal:
    return _principal(request, "admin")


def _principal(request: Request, scope: Scope) -> Principal:
    principal: Principal = request.state.principal
    principal.check(scope)
    return principal


IdempotencyKey = Annotated[str | None, Header(max_length=200)]
IfMatch = Annotated[str | None, Header()]
Limit = Annotated[int, Query(ge=1, le=1_000)]
Running = Annotated[Service, Depends(_service)]
Reader = Annotated[Principal, Depends(_reader)]
Writer = Annotated[Principal, Depends(_writer)]
Admin = Annotated[Principal, Depends(_admin)]
