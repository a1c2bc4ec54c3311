"""How a conversation deals with its model: what a request weighs, calls, and second tries.

Everything here runs beside the conversation, on the I/O loop or a worker thread.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TypeVar, cast

import orjson
from pydantic import BaseModel

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.token_breakdown import TokenBreakdown, TokenCalibration
from agent_context._context.tokens import (
    TokenCountCache,
    count_overhead,
    count_tools,
    counter,
    is_vocabulary_loaded,
)
from agent_context._context.zones import Zones
from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message, Origin, Role
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamAccumulator, StreamEvent
from agent_context.wire.rendering import RequestRenderer

__all__ = ["ModelClient", "scratch_records"]

_FEW = 2_000
"""Messages whose counts are added up in well under a millisecond."""
_LITTLE = 4_000
"""Bytes of text that are counted in well under a millisecond."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0

_PREFIX_OPTIONS = attrgetter(
    "model", "effort", "thinking", "tools", "tool_choice", "response_format", "extra"
)

T = TypeVar("T")


def scratch_records(options: SendOptions) -> tuple[StoredMessage, ...]:
    """The scratch messages, at rest."""
    return tuple(from_message(message) for message in cast("Sequence[Message]", options.scratch))


class ModelClient:
    """One conversation's dealings with one backend: it remembers counts and rendered bytes."""

    __slots__ = (
        "_counts",
        "_instructions",
        "_prefix_fields",
        "_rendering",
        "backend",
        "calibration",
        "conversation_id",
    )  # fmt: skip

    def __init__(self, backend: ContextBackend, conversation_id: str) -> None:
        self.backend = backend
        self.conversation_id = conversation_id
        self.calibration = TokenCalibration()
        self._rendering = RequestRenderer()
        self._counts: tuple[ModelFacts, dict[bool, TokenCountCache]] | None = None
        self._prefix_fields: tuple[tuple[object, ...], Mapping[str, bytes]] | None = None
        self._instructions: tuple[str, StoredMessage] | None = None

    def facts(self, options: SendOptions) -> ModelFacts:
        """What is known of the model that these options name."""
        return self.backend.model_facts(options.model)

    def token_counts(self, options: SendOptions) -> TokenCountCache:
        """Token counts of records, for the model that these options name."""
        facts = self.facts(options)
        if self._counts is None or self._counts[0] != facts:
            self.calibration = TokenCalibration()
            self._counts = facts, {}
        silent = facts.reasoning_needs_tools and not options.tools
        if (counts := self._counts[1].get(silent)) is None:
            counts = self._counts[1][silent] = self._counter(facts, silent=silent)
        return counts

    def _counter(self, facts: ModelFacts, *, silent: bool) -> TokenCountCache:
        backend = self.backend
        facts = replace(facts, sends_reasoning=False) if silent else facts
        return TokenCountCache(lambda message: backend.estimate_tokens(message, facts))

    def with_instructions(self, zones: Zones, options: SendOptions) -> Zones:
        """The zones with the turn's instructions behind the immutable one."""
        told = self._instructions_record(options)
        if not told:
            return zones
        immutable = zones.immutable.extend(told)
        return Zones(immutable, zones.compressed, zones.incremental, zones.open_calls)

    def _instructions_record(self, options: SendOptions) -> tuple[StoredMessage, ...]:
        text, known = options.instructions, self._instructions
        if not text:
            return ()
        if known is None or known[0] != text:
            # One record while the text stays, so that what was rendered and counted stays too.
            known = self._instructions = text, from_message(self.backend.system_message(text))
        return known[1:]

    def prefix_fields(self, options: SendOptions) -> Mapping[str, bytes]:
        """What a prompt cache looks at beside the messages; one object while nothing changes."""
        chosen = _PREFIX_OPTIONS(options)
        if self._prefix_fields is None or not all(map(_is_same, chosen, self._prefix_fields[0])):
            fields = self.backend.prefix_fields(self.request(Zones(), (), options))
            # As bytes: the order of keys, in a tool's schema for one, counts too.
            head = {name: orjson.dumps(value, default=_plain) for name, value in fields.items()}
            same = self._prefix_fields is not None and self._prefix_fields[1] == head
            self._prefix_fields = (
                chosen,
                self._prefix_fields[1] if same and self._prefix_fields else head,
            )
        return self._prefix_fields[1]

    def count_tokens(
        self, zones: Zones, trailing: Iterable[StoredMessage], options: SendOptions
    ) -> TokenBreakdown:
        """What a request would take of the window, as it is counted here.

        Counts what was never counted: may be slow.
        """
        facts, counts = self.facts(options), self.token_counts(options)
        window = options.context_window or facts.context_window
        return TokenBreakdown(
            immutable=counts.total(zones.immutable),
            compressed=counts.total(zones.compressed),
            incremental=counts.total(zones.incremental),
            scratch=counts.total(trailing),
            tools=count_tools(options.tools, facts),
            instructions=counts.total(self._instructions_record(options)),
            overhead=count_overhead(facts, options),
            reserve=options.max_tokens or min(facts.default_reserve, window // 4),
            window=window,
            exact=counter(facts.vocabulary).exact,
        )

    def counts_quickly(
        self, zones: Zones, trailing: Iterable[StoredMessage], options: SendOptions
    ) -> bool:
        """Whether `weigh` takes next to no time: almost everything was counted before."""
        few = len(zones) <= _FEW and is_vocabulary_loaded(self.facts(options).vocabulary)
        said = chain(self._instructions_record(options), zones, trailing)
        return few and self.token_counts(options).missing(said) <= _LITTLE

    def prune_counts(self, zones: Zones, options: SendOptions) -> None:
        """Let go of counts of what the conversation doesn't hold any more, if they are many."""
        self.token_counts(options).prune(zones)

    def sizes(self, records: Iterable[StoredMessage], options: SendOptions) -> list[float]:
        """Tokens of each message, corrected by what the vendor has reported."""
        count, factor = self.token_counts(options).of, self.calibration.factor
        return [count(record) * factor for record in records]

    def estimate(
        self, zones: Zones, trailing: Iterable[StoredMessage], options: SendOptions
    ) -> TokenBreakdown:
        """What a request would take of the window, corrected by what the vendor has reported."""
        return self.calibration.apply(self.count_tokens(zones, trailing, options))

    def calibrate(self, weighed: int, completion: Completion) -> None:
        """Correct later figures: the vendor counted this for a request that weighed `weighed`."""
        if weighed and completion.usage.input_tokens:
            self.calibration = self.calibration.learn(weighed, completion.usage.input_tokens)

    async def ask(
        self, zones: Zones, trailing: tuple[StoredMessage, ...], options: SendOptions
    ) -> Completion:
        """The model's whole answer to a request of its own."""
        return await self.complete(self.request(zones, trailing, options))

    def request(
        self, zones: Zones, trailing: tuple[StoredMessage, ...], options: SendOptions
    ) -> Request:
        """The request for these messages."""
        return Request(
            conversation_id=self.conversation_id,
            zones=self.with_instructions(zones, options),
            trailing=trailing,
            options=options,
            facts=self.facts(options),
            rendering=self._rendering,
        )

    async def complete(self, request: Request) -> Completion:
        """The model's whole answer; tried again as far as `options.retries` and the error allow."""

        async def call() -> Completion:
            return _check_completion(await self.backend.send(request), self.backend)

        return await _retry(call, request.options.retries, lambda _: True)

    async def stream(
        self,
        request: Request,
        assembly: StreamAccumulator,
        emit: Callable[[StreamEvent], Awaitable[None]],
    ) -> Completion:
        """The model's answer, each piece added to `assembly` and emitted on its way.

        Tried again only while nothing has been emitted.
        """
        assembly.origin = Origin(vendor=self.backend.vendor, model=request.options.model or "")

        async def call() -> Completion:
            events = self.backend.send_stream(request)
            try:
                async for event in events:
                    assembly.add(event)
                    if not isinstance(event, Finished):
                        await emit(event)
            finally:
                await _close(events)
            completion = assembly.completion or _to_completion(assembly)
            return _check_completion(completion, self.backend)

        return await _retry(call, request.options.retries, lambda _: assembly.empty)


def _is_same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, str) and one == other)


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else repr(value)


def _to_completion(assembly: StreamAccumulator) -> Completion:
    """The answer of a backend that says nothing at the end."""
    message = assembly.to_message()
    reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    return Completion(message=message, finish_reason=reason, usage=assembly.usage)


def _check_completion(completion: object, backend: ContextBackend) -> Completion:
    """The answer, with its origin and finish reason in the message. Raises `BackendError`."""
    if not isinstance(completion, Completion) or completion.message.role is not Role.ASSISTANT:
        raise BackendError(
            f"the backend must answer with the Completion of an assistant, not {completion!r}",
            kind=ErrorKind.PROTOCOL,
            vendor=backend.vendor,
        )
    message, reason = completion.message, completion.finish_reason
    if _is_empty(message) and reason is FinishReason.STOP:
        raise BackendError(
            "the model stopped without text, reasoning or tool calls",
            kind=ErrorKind.EMPTY_RESPONSE,
            vendor=backend.vendor,
            request_id=completion.request_id,
        )
    if message.finish_reason is reason and message.origin is not None:
        return completion
    origin = message.origin or Origin(vendor=backend.vendor, model=completion.model)
    whole = message.model_copy(update={"finish_reason": reason, "origin": origin})
    return completion.model_copy(update={"message": whole})


def _is_empty(message: Message) -> bool:
    return not (message.text or message.reasoning or message.tool_calls)


async def _retry(
    call: Callable[[], Awaitable[T]], retries: int, may_retry: Callable[[BackendError], bool]
) -> T:
    for attempt in range(retries + 1):
        try:
            return await call()
        except BackendError as error:
            if attempt == retries or not error.retryable or not may_retry(error):
                raise
            await asyncio.sleep(_pause(attempt, error))
    raise AssertionError("unreachable")  # pragma: no cover - the last attempt returns or raises


def _pause(attempt: int, error: BackendError) -> float:
    """Seconds: what the vendor asked for, or twice as long each time, with jitter."""
    if error.retry_after is not None:
        return error.retry_after
    pause = min(_FIRST_PAUSE * float(1 << attempt), _LONGEST_PAUSE)
    return pause * random.uniform(0.5, 1.0)


async def _close(events: AsyncIterator[StreamEvent]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
