"""How a conversation talks to its model: what a request costs, model calls, and retries.

Everything here runs beside the actor, on the I/O loop or a worker thread.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final, TypeVar, cast

import orjson
from msgspec import Struct
from pydantic import BaseModel

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.token_breakdown import TokenBreakdown, TokenCalibration
from agent_context._context.tokens import (
    TokenCountCache,
    count_overhead,
    counter,
    is_vocabulary_loaded,
    most_tokens,
)
from agent_context._context.tool_tokens import count_tools, most_tokens_of_tools
from agent_context._context.zones import Zone, Zones
from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError, ErrorKind
from agent_context.messages import Completion, FinishReason, Message, Origin, Role
from agent_context.models import ESTIMATED, ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamAccumulator, StreamEvent
from agent_context.wire.rendering import RequestRenderer

__all__ = ["BoundModel", "ModelClient", "RequestSize", "check_completion", "scratch_records"]

logger = logging.getLogger(__name__)

_QUICK_BYTES: Final = 4_000
"""Bytes of text that are counted in well under a millisecond."""
_QUICK_BYTES_ESTIMATED: Final = 10_000
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_LONGEST_WAIT: Final = 60.0
"""Seconds that a call without a deadline waits before it is tried again."""

_PREFIX_OPTIONS = attrgetter(
    "model", "effort", "thinking", "tools", "tool_choice", "response_format", "extra"
)

T = TypeVar("T")


def scratch_records(options: SendOptions) -> tuple[StoredMessage, ...]:
    """The scratch messages in their stored form."""
    return tuple(from_message(message) for message in cast("Sequence[Message]", options.scratch))


class RequestSize(Struct, frozen=True):
    """How much of the window a request takes."""

    breakdown: TokenBreakdown
    """In tokens, corrected by what the vendor has reported."""
    counted: int
    """The total before that correction; 0 if it is only estimated."""
    counts: TokenCountCache
    """What counted the messages."""
    factor: float
    """The correction."""

    def prefix_tokens(self, zones: Zones, length: int) -> int:
        """Tokens of the request's tools and of its first `length` messages."""
        messages = self.counts.total_of_first(zones, length)
        return math.ceil(messages * self.factor) + self.breakdown.tools + self.breakdown.overhead


class ModelClient:
    """What one conversation remembers of one backend: token counts, calibration, rendered bytes."""

    __slots__ = (
        "_counts", "_estimated_facts", "_instructions", "_known_facts", "_prefix_fields",
        "_served_windows", "_tools", "_warned", "backend", "calibration",
        "conversation_id", "renderer",
    )  # fmt: skip

    def __init__(self, backend: ContextBackend, conversation_id: str) -> None:
        self.backend = backend
        self.conversation_id = conversation_id
        self.calibration = TokenCalibration()
        self.renderer = RequestRenderer()
        self._counts: tuple[ModelFacts, dict[tuple[bool, bool], TokenCountCache]] | None = None
        self._prefix_fields: tuple[tuple[object, ...], Mapping[str, bytes]] | None = None
        self._instructions: tuple[str, StoredMessage] | None = None
        self._tools: tuple[object, ModelFacts, int] | None = None
        self._served_windows: dict[str | None, int] = {}
        """By model: the window that its server named when it refused a request, in tokens."""
        self._known_facts: tuple[object, object, ModelFacts] | None = None
        self._estimated_facts: tuple[ModelFacts, ModelFacts] | None = None
        self._warned = False

    def bind(self, options: SendOptions) -> BoundModel:
        """The model with these options; what is known of it is looked up once, here."""
        return BoundModel(self, options, self._facts(options))

    def learn_window(self, model: str | None, window: int) -> None:
        """From now on `model` takes no more than `window` tokens: its server said so."""
        self._served_windows[model] = window

    def calibrate(self, counted: int, reported: int | None) -> None:
        """Correct later figures: the vendor reported this for a request of `counted` tokens."""
        if counted and reported:
            self.calibration = self.calibration.learn(counted, reported)

    def _facts(self, options: SendOptions) -> ModelFacts:
        told = cast("ModelFacts | None", self.backend.model_facts(options.model))
        served = self._served_windows.get(options.model)
        key = options.model, options.context_window, served
        known = self._known_facts
        # The same object while nothing changes: what was counted for it is found by identity.
        if known is None or known[0] is not told or known[1] != key:
            known = self._known_facts = told, key, self._adapt_facts(told, *key)
        return known[2]

    def _adapt_facts(
        self, facts: ModelFacts | None, model: str | None, wanted: int | None, served: int | None
    ) -> ModelFacts:
        """The facts, with the window that applies, in tokens; 0 if unknown."""
        window = wanted or (facts.context_window if facts is not None else 0)
        if facts is None or window <= 0:
            self._warn_unknown_window(model)
            facts, window = facts or ModelFacts(context_window=0, max_output=0), 0
        if served is not None and not 0 < window <= served:
            window = served
        return facts if facts.context_window == window else replace(facts, context_window=window)

    def _warn_unknown_window(self, model: str | None) -> None:
        if not self._warned:
            self._warned = True
            name = model or "the model"
            logger.warning(
                "the window of %s is not known: nothing is compressed before the server refuses a "
                "request as too long; give context_window in the options",
                name,
            )

    def token_counts(
        self, facts: ModelFacts, *, without_reasoning: bool, estimated: bool
    ) -> TokenCountCache:
        """Token counts of messages for a model of these facts."""
        if self._counts is None or not _count_alike(self._counts[0], facts):
            self.calibration = TokenCalibration()
            self._counts = facts, {}
        caches, key = self._counts[1], (without_reasoning, estimated)
        counts = caches.get(key)
        if counts is None:
            if without_reasoning:
                facts = replace(facts, sends_reasoning=False)
            if estimated:
                facts = _without_vocabulary(facts)
            estimate = self.backend.estimate_tokens
            counts = caches[key] = TokenCountCache(lambda message: estimate(message, facts))
        return counts

    def with_estimated_tokens(self, facts: ModelFacts) -> ModelFacts:
        """The same facts with estimated token counts; the same object for the same facts."""
        known = self._estimated_facts
        if known is None or known[0] is not facts:
            known = self._estimated_facts = facts, _without_vocabulary(facts)
        return known[1]

    def tool_tokens(self, options: SendOptions, facts: ModelFacts) -> int:
        """Tokens of the tools' definitions; counted once while they stay the same."""
        known = self._tools
        if known is None or known[0] is not options.tools or not _count_alike(known[1], facts):
            known = self._tools = options.tools, facts, count_tools(options.tools, facts)
        return known[2]

    def instructions_record(self, text: str) -> StoredMessage:
        """The instructions as a message: one record while the text stays, so its bytes do too."""
        known = self._instructions
        if known is None or known[0] != text:
            known = self._instructions = text, from_message(self.backend.system_message(text))
        return known[1]

    def prefix_fields(self, bound: BoundModel) -> Mapping[str, bytes]:
        """What a prompt cache looks at beside the messages; one object while nothing changes."""
        chosen, known = _PREFIX_OPTIONS(bound.options), self._prefix_fields
        if known is None or not all(map(_is_same, chosen, known[0])):
            fields = self.backend.prefix_fields(bound.request(Zones(), ()))
            # As bytes: the order of keys, in a tool's schema for one, counts too.
            encoded = {name: orjson.dumps(value, default=_plain) for name, value in fields.items()}
            same = known is not None and known[1] == encoded
            known = self._prefix_fields = chosen, known[1] if same and known else encoded
        return known[1]


class BoundModel:
    """A conversation's model with one set of options."""

    __slots__ = ("_client", "facts", "options")

    def __init__(self, client: ModelClient, options: SendOptions, facts: ModelFacts) -> None:
        self._client = client
        self.options = options
        self.facts = facts
        """What is known of the model; its window is 0 if nobody knows it."""

    @property
    def backend(self) -> ContextBackend:
        return self._client.backend

    @property
    def conversation_id(self) -> str:
        return self._client.conversation_id

    def rebind(self, options: SendOptions) -> BoundModel:
        """The same model with other options."""
        before = self.options
        if options.model == before.model and options.context_window == before.context_window:
            return BoundModel(self._client, options, self.facts)
        return self._client.bind(options)

    def refresh(self) -> BoundModel:
        """The same, with what was learned of the model since."""
        return self._client.bind(self.options)

    def learn_overflow(self, error: BackendError, size: RequestSize | None) -> None:
        """Learn the window that the server named when it refused a request as too long."""
        if error.window is not None and error.window > 0:
            self._client.learn_window(self.options.model, error.window)
        if size is not None:
            self._client.calibrate(size.counted, error.needed)

    def learn_usage(self, size: RequestSize | None, completion: Completion) -> None:
        """Calibrate later estimates with the vendor's count."""
        if size is not None:
            self._client.calibrate(size.counted, completion.usage.input_tokens)

    # What a request costs.

    def measure(self, zones: Zones, trailing: Sequence[StoredMessage]) -> RequestSize:
        """What a request would take of the window. Slow if much of it was never counted.

        While the vocabulary is not loaded and the request fits whatever its tokens are, they are
        only estimated: a text never has more tokens than bytes.
        """
        if self._fits_by_bytes(zones, trailing):
            return self._measure(zones, trailing, estimated=True)
        return self._measure(zones, trailing, estimated=False)

    def is_quick(self, zones: Zones, trailing: Sequence[StoredMessage]) -> bool:
        """Whether `measure` is fast: almost everything has been counted before."""
        estimated = self._fits_by_bytes(zones, trailing)
        if not estimated and not is_vocabulary_loaded(self.facts.vocabulary):
            return False
        counts = self._counts(estimated=estimated)
        uncounted = counts.uncounted_bytes(zones) + counts.missing(trailing)
        return uncounted <= (_QUICK_BYTES_ESTIMATED if estimated else _QUICK_BYTES)

    def measure_exactly(self, zones: Zones, trailing: Sequence[StoredMessage]) -> RequestSize:
        """The same, counted with the model's vocabulary, which is loaded if necessary."""
        return self._measure(zones, trailing, estimated=False)

    def estimate(self, zones: Zones, trailing: Sequence[StoredMessage]) -> TokenBreakdown:
        """What a request would take, part by part; counted as `measure_exactly` does."""
        return self.measure_exactly(zones, trailing).breakdown

    def count_exactly(self, zones: Zones, trailing: Sequence[StoredMessage]) -> TokenBreakdown:
        """The same, not corrected by what the vendor has reported."""
        return self._count(zones, trailing, self._counts(estimated=False), self.facts)

    def count(self, record: StoredMessage) -> int:
        """Tokens of one message, in the model's vocabulary."""
        return self._counts(estimated=False).of(record)

    def sizes(self, records: Iterable[StoredMessage]) -> list[float]:
        """Tokens of each message, corrected by what the vendor has reported."""
        count, factor = self._counts(estimated=False).of, self._client.calibration.factor
        return [count(record) * factor for record in records]

    @property
    def calibration_factor(self) -> float:
        """What counts are multiplied by, learned from what the vendor has reported."""
        return self._client.calibration.factor

    def count_known(self, record: StoredMessage, message: Message) -> None:
        """Count a message whose parsed value is at hand."""
        if len(record.body) <= _QUICK_BYTES:
            estimated = not is_vocabulary_loaded(self.facts.vocabulary)
            self._counts(estimated=estimated).add(record, message)

    def prune_counts(self, zones: Zones) -> None:
        """Forget the counts of messages that are gone, if there are many."""
        for estimated in (True, False):
            self._counts(estimated=estimated).prune(zones)

    def _fits_by_bytes(self, zones: Zones, trailing: Iterable[StoredMessage]) -> bool:
        facts, options = self.facts, self.options
        if is_vocabulary_loaded(facts.vocabulary):
            return False
        window = facts.context_window or math.inf
        said = (*self._instructions(), *trailing)
        most = self._counts(estimated=True).most_tokens(zones) + sum(map(most_tokens, said))
        most += most_tokens_of_tools(options.tools, facts) + count_overhead(facts, options)
        return most * facts.margin * self.calibration_factor + self._reserve() <= window

    def _measure(
        self, zones: Zones, trailing: Sequence[StoredMessage], *, estimated: bool
    ) -> RequestSize:
        counts, facts = self._counts(estimated=estimated), self.facts
        if estimated:
            facts = self._client.with_estimated_tokens(facts)
        raw = self._count(zones, trailing, counts, facts)
        calibration = self._client.calibration
        counted = 0 if estimated else raw.total
        return RequestSize(calibration.apply(raw), counted, counts, calibration.factor)

    def _count(
        self,
        zones: Zones,
        trailing: Sequence[StoredMessage],
        counts: TokenCountCache,
        facts: ModelFacts,
    ) -> TokenBreakdown:
        return TokenBreakdown(
            immutable=counts.total_of(Zone.IMMUTABLE, zones.immutable),
            compressed=counts.total_of(Zone.COMPRESSED, zones.compressed),
            incremental=counts.total_of(Zone.INCREMENTAL, zones.incremental),
            scratch=counts.total(trailing),
            tools=self._client.tool_tokens(self.options, facts),
            instructions=counts.total(self._instructions()),
            overhead=count_overhead(facts, self.options),
            reserve=self._reserve(),
            window=facts.context_window,
            exact=counter(facts.vocabulary).exact,
        )

    def _reserve(self) -> int:
        facts = self.facts
        usual = facts.default_reserve
        if facts.context_window:
            usual = min(usual, facts.context_window // 4)
        return self.options.max_tokens or usual

    def _counts(self, *, estimated: bool) -> TokenCountCache:
        silent = self.facts.reasoning_needs_tools and not self.options.tools
        return self._client.token_counts(self.facts, without_reasoning=silent, estimated=estimated)

    # Requests.

    def with_instructions(self, zones: Zones) -> Zones:
        """The zones with the turn's instructions behind the immutable one."""
        instructions = self._instructions()
        if not instructions:
            return zones
        immutable = zones.immutable.extend(instructions)
        return Zones(immutable, zones.compressed, zones.incremental, zones.open_calls)

    def _instructions(self) -> tuple[StoredMessage, ...]:
        text = self.options.instructions
        return (self._client.instructions_record(text),) if text else ()

    def prefix_fields(self) -> Mapping[str, bytes]:
        """What a prompt cache looks at beside the messages; one object while nothing changes."""
        return self._client.prefix_fields(self)

    def request(self, zones: Zones, trailing: tuple[StoredMessage, ...]) -> Request:
        """The request that sends `zones`, with the instructions, and `trailing`."""
        return Request(
            conversation_id=self._client.conversation_id,
            zones=self.with_instructions(zones),
            trailing=trailing,
            options=self.options,
            facts=self.facts,
            rendering=self._client.renderer,
        )

    async def ask(
        self, zones: Zones, trailing: tuple[StoredMessage, ...], *, deadline: float | None = None
    ) -> Completion:
        """The model's whole answer to a request of its own."""
        return await self.complete(self.request(zones, trailing), deadline)

    async def complete(self, request: Request, deadline: float | None = None) -> Completion:
        """The model's whole answer; retried as far as `options.retries` and the error allow.

        `deadline` is on the monotonic clock: no pause goes past it.
        """

        async def call() -> Completion:
            completion = check_completion(await self.backend.send(request), self.backend)
            self._check_window(completion)
            return completion

        return await _retry(call, self.options.retries, deadline, lambda: True)

    async def stream(
        self,
        request: Request,
        accumulator: StreamAccumulator,
        emit: Callable[[StreamEvent], Awaitable[None]],
        deadline: float | None = None,
    ) -> Completion:
        """The model's answer as a stream: each event is added to `accumulator` and emitted.

        Tried again only while nothing has been emitted.
        """
        accumulator.origin = Origin(vendor=self.backend.vendor, model=self.options.model or "")

        async def call() -> Completion:
            events = self.backend.send_stream(request)
            try:
                async for event in events:
                    accumulator.add(event)
                    if not isinstance(event, Finished):
                        await emit(event)
            finally:
                await _close(events)
            completion = accumulator.completion or _to_completion(accumulator)
            completion = check_completion(completion, self.backend)
            try:
                self._check_window(completion)
            except BackendError as error:
                if accumulator.empty:
                    raise
                logger.warning("%s; it was streamed already", error)
            return completion

        return await _retry(call, self.options.retries, deadline, lambda: accumulator.empty)

    def _check_window(self, completion: Completion) -> None:
        """Some servers cut a request that is too long and answer the rest (Zhipu, 2026-11).

        Their count of what they were sent gives that away. Raises `BackendError`.
        """
        window, asked = self.facts.context_window, completion.usage.input_tokens or 0
        if window and asked > window:
            raise BackendError(
                f"{self.backend.vendor} answered a request of {asked} tokens although the model "
                f"takes {window}: it has read only a part",
                kind=ErrorKind.CONTEXT_OVERFLOW,
                vendor=self.backend.vendor,
                request_id=completion.request_id,
                needed=asked,
                window=window,
            )


def _without_vocabulary(facts: ModelFacts) -> ModelFacts:
    return replace(facts, vocabulary=ESTIMATED)


def _count_alike(one: ModelFacts, other: ModelFacts) -> bool:
    """Whether both count tokens alike, whatever their windows."""
    return one is other or replace(one, context_window=other.context_window) == other


def _is_same(one: object, other: object) -> bool:
    return one is other or (isinstance(one, str) and one == other)


def _plain(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else repr(value)


def _to_completion(accumulator: StreamAccumulator) -> Completion:
    """The answer of a backend whose stream ends without `Finished`."""
    message = accumulator.to_message()
    reason = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    return Completion(message=message, finish_reason=reason, usage=accumulator.usage)


def check_completion(completion: object, backend: ContextBackend) -> Completion:
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
    call: Callable[[], Awaitable[T]],
    retries: int,
    deadline: float | None,
    may_retry: Callable[[], bool],
) -> T:
    for attempt in range(retries + 1):
        try:
            return await call()
        except BackendError as error:
            if attempt == retries or not error.retryable or not may_retry():
                raise
            pause = _pause(attempt, error)
            left = _LONGEST_WAIT if deadline is None else deadline - time.monotonic()
            if pause >= left:
                raise  # it would be too late: the vendor's own words say more than a timeout
            logger.info("%s: %s; tried again in %.1f s", error.vendor, error, pause)
            await asyncio.sleep(pause)
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
