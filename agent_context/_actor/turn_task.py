"""Running a turn on the I/O loop: make the request fit, ask the model, answer its tool calls.

The actor owns the conversation: the task posts to it what is to be stored, and goes on with the
zones that come back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from msgspec.structs import replace

from agent_context._actor.checkpoint import TurnCheckpoint
from agent_context._actor.compression_plan import plan_compression
from agent_context._actor.config import ActorConfig
from agent_context._actor.model_client import (
    BoundModel,
    ModelClient,
    RequestSize,
    check_completion,
    scratch_records,
)
from agent_context._actor.prompt_cache_tracker import (
    PrefixComparison,
    PreviousRequest,
    compare_prefix,
)
from agent_context._actor.state import TurnMessage
from agent_context._actor.turn import (
    CompressionReady,
    MessagesRecalled,
    PrefixChanged,
    RoundFinished,
    RoundStored,
    TurnFinished,
    TurnRequest,
    TurnTimedOut,
)
from agent_context._actor.turn_recall import TurnRecall
from agent_context._context.persistent_vector import EMPTY
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.zones import Zones
from agent_context._runtime import IoTask, Reply, io_loop
from agent_context._validation import check_type
from agent_context.compression.executor import CompressionResult
from agent_context.compression.summarizer import SummaryRejected
from agent_context.errors import (
    BackendError,
    CompressionError,
    ContextFull,
    ErrorKind,
    InvalidMessage,
    TurnCancelled,
)
from agent_context.messages import Completion, Message, MessageId, Role, Usage
from agent_context.model_call import ModelCall
from agent_context.options import SendOptions, release_tool_choice
from agent_context.pricing import ModelCallUsage, are_prices_loaded, total_usage
from agent_context.stream import Channel
from agent_context.stream_events import (
    StreamAccumulator,
    StreamEvent,
    TextDelta,
    ToolRoundFinished,
    ToolRoundStarted,
)
from agent_context.tools.loop import ToolRound

__all__ = ["TurnTask"]

_TRIES: Final = 3
_TARGET: Final = 0.5
"""Compression aims at this share of the room, so that the next turns don't need it again."""
_AFTER_OVERFLOW: Final = 0.75
"""The same of what was sent, when the server found that too long."""
_CHECKPOINT = 1.0
"""Seconds between two checkpoints of a stream."""

WriteCheckpoint = Callable[[], Awaitable[None] | None]
"""Writes down what is known of the turn; durable when what it returns is settled."""


class TurnTask:
    """A running turn. The actor may read everything but `run` meanwhile."""

    def __init__(
        self,
        turn_id: str,
        request: TurnRequest,
        *,
        zones: Zones,
        client: ModelClient,
        config: ActorConfig,
        recall: TurnRecall,
        previous: PreviousRequest,
        channel: Channel | None,
        write_checkpoint: WriteCheckpoint | None,
        post: Callable[[object], bool],
    ) -> None:
        self._turn_id = turn_id
        self._request = request
        self._zones = zones
        self._client = client
        self._config = config
        self._recall = recall
        self._previous = previous
        self._channel = channel
        self._write_checkpoint = write_checkpoint
        self._post = post
        self._deadline = 0.0
        self._pending: tuple[TurnMessage, ...] = request.messages
        """What the turn says and has not stored yet."""
        self._outgoing = request.outgoing
        """What is sent in its place, until the first round is over."""
        self._stored_ids: frozenset[str] = frozenset()
        self._opening_ids = _user_ids(request.messages)
        """Of the words that began the turn: they are sent until it ends."""
        history = request.history
        self._history = None if history is None else Zones(zones.immutable, EMPTY, history)
        self._compressed = False
        """Whether the turn has compressed anything since its last answer."""
        self._rounds = 0
        self._overflows = 0
        """How often in a row the server found the request too long."""
        self._accumulator = StreamAccumulator()
        self._calling: Completion | None = None
        """The answer whose tool calls are being carried out."""
        self._results: list[Message] = []
        """What has come of them so far."""
        self._comparison: PrefixComparison | None = None
        self._size: RequestSize | None = None
        self._used: list[ModelCallUsage] = []
        """What each call of a model used."""

    @property
    def client(self) -> ModelClient:
        """The model client that the turn started with."""
        return self._client

    @property
    def comparison(self) -> PrefixComparison | None:
        """How the last request that was sent compares with the one before it."""
        return self._comparison

    def describe(self, turn: TurnCheckpoint) -> TurnCheckpoint:
        """Complete the actor's checkpoint with what the task knows. From any thread."""
        calling = self._calling
        answer = calling.message if calling else self._accumulator.to_interrupted_message()
        return replace(
            turn,
            pending_messages=tuple(said.record for said in self._pending),
            answer=answer,
            executing_tools=calling is not None,
            results=tuple(self._results),
            answers_own_calls=self._request.loop is not None,
        )

    def begin_round(self, pending: tuple[TurnMessage, ...]) -> None:
        """The round is stored, and `pending` goes out with the next request. For the actor.

        Whoever ends the turn from now on must not store the round again.
        """
        self._pending, self._calling, self._results = pending, None, []
        self._outgoing = None
        self._accumulator, self._overflows = StreamAccumulator(), 0

    def spawn(self, seconds: float, recorded: Reply[None] | None) -> IoTask:
        """Start on the I/O loop; `seconds` until the deadline.

        Nothing is sent before `recorded` is settled: that it is kept that the turn runs.
        """
        post, turn_id = self._post, self._turn_id

        async def work() -> None:
            # On the loop itself: a timer of its own would cost two calls across threads.
            overdue = asyncio.get_running_loop().call_later(seconds, post, TurnTimedOut(turn_id))
            self._deadline = time.monotonic() + seconds
            try:
                if recorded is not None:
                    await recorded
                post(await self._run())
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                post(TurnFinished(turn_id, error=error))
            finally:
                overdue.cancel()

        task = io_loop().spawn(work)
        cancelled = TurnFinished(turn_id, error=TurnCancelled("the turn's task was cancelled"))
        # However else it ends, `work` has told so.
        task.add_done_callback(lambda ended: ended.cancelled() and post(cancelled))
        return task

    async def _run(self) -> TurnFinished:
        """Raises `ContextFull` before any network traffic, and what backend or loop raise."""
        request = self._request
        model = self._client.bind(request.options)
        zones = self._zones if self._history is None else self._history
        if request.loop is not None and not request.stores and self._history is None:
            self._history = zones  # the rounds are stored nowhere else
        while True:
            completion = await self._ask(model, zones)
            if request.loop is None or not completion.message.tool_calls:
                return await self._finished(completion)
            self._calling, self._results = completion, []
            await self._write_down()
            if self._channel is not None:
                await self._channel.put(ToolRoundStarted(completion.message.tool_calls))
            answers = await request.loop.answer(completion, self._result_sink(self._results))
            if answers is None:
                return await self._finished(completion)
            zones = await self._store_round(completion, answers)
            self._rounds += 1
            model = model.rebind(_options_after(model.options, answers))

    async def _finished(self, completion: Completion) -> TurnFinished:
        used = self._used
        ready = not used or are_prices_loaded()
        total = total_usage(used) if ready else await io_loop().offload(total_usage, used)
        completion = completion.model_copy(update={"turn": total})
        answer = from_message(completion.message)
        return TurnFinished(
            self._turn_id, completion, answer, self._comparison, self._window_share()
        )

    def _window_share(self) -> float:
        breakdown = self._size.breakdown if self._size else None
        return breakdown.total / breakdown.window if breakdown and breakdown.window else 0.0

    # Rounds.

    async def _write_down(self) -> None:
        """Write a checkpoint before tools run: a later owner must know that they may have."""
        if self._write_checkpoint is None:
            return
        written = self._write_checkpoint()
        if written is not None:
            await written

    def _result_sink(self, results: list[Message]) -> Callable[[Message], object]:
        """A callback for results of this round; late ones don't count for the next."""

        def take(result: Message) -> None:
            if not isinstance(cast("object", result), Message):
                raise InvalidMessage(f"a result is a Message, not {type(result).__name__}")
            from_message(result)  # whether it can be stored
            if self._results is results:
                results.append(result)
                # With the last one the round itself is stored.
                if self._write_checkpoint is not None and not self._is_answered(results):
                    self._write_checkpoint()

        return take

    def _is_answered(self, results: Sequence[Message]) -> bool:
        """Whether every call of the answer has its last result."""
        calls = self._calling.message.tool_calls if self._calling else ()
        final = {result.tool_call_id for result in results if not result.interim}
        return all(call.id in final for call in calls)

    async def _store_round(self, completion: Completion, answers: ToolRound) -> Zones:
        self._results = list(self._results)  # what comes late is not heard any more
        asked = self._said()
        heard = [
            TurnMessage(from_message(message), message)
            for message in (completion.message, *answers.results)
        ]
        reply: Reply[RoundStored] = Reply()
        self._post(RoundFinished(self._turn_id, completion, heard, self._comparison, reply))
        stored = await reply
        if self._history is not None:
            said = (*asked, *(each.record for each in stored.messages))
            zones = self._history = self._history.extend(said)
        else:
            zones, self._stored_ids = stored.zones, stored.stored_ids
        if self._channel is not None:
            answer, *results = (each.message for each in stored.messages)
            completion = completion.model_copy(update={"message": answer})
            await self._channel.put(ToolRoundFinished(completion, tuple(results)))
        return zones

    # The model.

    async def _ask(self, model: BoundModel, zones: Zones) -> Completion:
        """The model's answer, by way of what stands around its calls."""
        self._zones = zones
        if self._request.around is None:
            return await self._ask_model(model)

        async def proceed(call: ModelCall) -> Completion:
            options = check_type("call", call, ModelCall).options
            self._accumulator = StreamAccumulator()
            return await self._ask_model(model.rebind(check_type("options", options, SendOptions)))

        self._comparison = self._size = None
        try:
            call = await self._describe_call(model)
            completion = await self._request.around(call, proceed)
            completion = check_completion(completion, model.backend)
        except BaseException:
            if self._accumulator.completion is not None:
                self._accumulator = StreamAccumulator()  # a whole answer was refused, not cut short
            raise
        if self._channel is not None and self._accumulator.empty and completion.text:
            await self._channel.put(TextDelta(completion.text))  # nobody else has told it
        return completion

    async def _describe_call(self, model: BoundModel) -> ModelCall:
        size = (await self._measure(model, self._zones)).breakdown
        zones, trailing = self._layout(model, self._zones)
        return ModelCall(
            options=model.options,
            round=self._rounds,
            conversation_id=self._client.conversation_id,
            vendor=model.backend.vendor,
            facts=model.facts,
            tokens=size.total,
            zones=model.with_instructions(zones),
            trailing=trailing,
        )

    async def _ask_model(self, model: BoundModel) -> Completion:
        while True:
            model, self._zones = await self._ensure_fits(model, self._zones)
            if self._recall.is_due and self._request.history is None:
                self._zones = await self._recall_messages(model, self._zones)
            try:
                completion = await self._send(model, self._zones)
            except BackendError as error:
                if not self._may_compress(model, error):
                    raise
                model, self._zones = await self._make_room(model, self._zones, error)
                continue
            self._note_answer(model, completion)
            return completion

    async def _make_room(
        self, model: BoundModel, zones: Zones, error: BackendError
    ) -> tuple[BoundModel, Zones]:
        """Compress after the server found the request too long. Raises `error` if that fails."""
        self._overflows += 1
        model.learn_overflow(error, self._size)
        model = model.refresh()
        try:
            return model, await self._compress(model, zones, await self._measure(model, zones))
        except ContextFull as full:
            if error.window is not None:
                raise  # its figures say more
            raise error from full

    def _note_answer(self, model: BoundModel, completion: Completion) -> None:
        model.learn_usage(self._size, completion)
        self._note_usage(model, completion.model, completion.usage)
        if self._comparison is not None:
            stores = self._request.stores
            last = self._comparison.to_sent_request(completion.usage, stored=stores)
            self._previous, self._compressed = PreviousRequest(last), False

    def _note_usage(self, model: BoundModel, name: str, usage: Usage) -> None:
        name = name or model.options.model or ""
        self._used.append(ModelCallUsage(model.backend.vendor, name, model.facts, usage))

    def _may_compress(self, model: BoundModel, error: BackendError) -> bool:
        overflow = error.kind is ErrorKind.CONTEXT_OVERFLOW and model.options.auto_compress
        return overflow and self._accumulator.empty and self._overflows < _TRIES

    async def _send(self, model: BoundModel, zones: Zones) -> Completion:
        said, trailing = self._layout(model, zones)
        self._compare(model, said, trailing)
        request = model.request(said, trailing)
        if self._channel is None:
            return await model.complete(request, self._deadline)
        emit = self._event_sink(self._channel)
        return await model.stream(request, self._accumulator, emit, self._deadline)

    def _event_sink(self, channel: Channel) -> Callable[[StreamEvent], Awaitable[None]]:
        """A callback that emits events and, with a journal, writes checkpoints of the answer."""
        write = self._write_checkpoint
        if write is None:
            return channel.put
        clock = asyncio.get_running_loop().time
        last = clock()

        async def put(event: StreamEvent) -> None:
            nonlocal last
            if clock() - last >= _CHECKPOINT:
                last = clock()
                write()
            await channel.put(event)

        return put

    def _layout(self, model: BoundModel, zones: Zones) -> tuple[Zones, tuple[StoredMessage, ...]]:
        """The request's zones and what trails them.

        What is never stored follows all that is; with a context so do the turn's own messages,
        which stand behind it, or else the next request would not begin with this one.
        """
        scratch = scratch_records(model.options)
        pending = self._said()
        context = self._context()
        if not context:
            return zones.extend(pending), scratch
        start = len(zones.incremental)
        for record in reversed(zones.incremental):
            if record.id not in self._stored_ids:
                break
            start -= 1
        own = zones.incremental.tail(start)
        return zones.truncate(start), (*context, *own, *pending, *scratch)

    def _context(self) -> tuple[StoredMessage, ...]:
        """What is sent in front of the turn's own messages, and never stored."""
        return (*self._recall.records, *self._request.context)

    def _said(self) -> tuple[StoredMessage, ...]:
        """The turn's own messages that are sent and not stored yet."""
        if self._outgoing is not None:
            return self._outgoing
        return tuple(said.record for said in self._pending)

    def _compare(
        self, model: BoundModel, zones: Zones, trailing: tuple[StoredMessage, ...]
    ) -> None:
        if self._size is None:
            return
        before = self._previous
        previous = PreviousRequest(before.last, before.compressed or self._compressed)
        pending = 0 if self._context() else len(self._pending)
        stored = len(zones.incremental) - pending
        whole = model.with_instructions(zones)
        self._comparison = compare_prefix(model, previous, whole, stored, trailing, self._size)
        if self._comparison.report.cause is not None:
            self._post(PrefixChanged(self._turn_id, self._comparison.report))

    # The window.

    async def _measure(self, model: BoundModel, zones: Zones) -> RequestSize:
        whole = zones.extend(self._said())
        for said in self._pending:
            model.count_known(said.record, said.message)
        passing = (*self._context(), *scratch_records(model.options))
        if model.is_quick(whole, passing):
            size = model.measure(whole, passing)
        else:
            size = await io_loop().offload(model.measure, whole, passing)
        model.prune_counts(whole)
        self._size = size
        return size

    async def _ensure_fits(self, model: BoundModel, zones: Zones) -> tuple[BoundModel, Zones]:
        for _ in range(_TRIES):
            size = await self._measure(model, zones)
            if size.breakdown.free >= 0:
                return model, zones
            if self._recall.drop():
                continue
            if not model.options.auto_compress:
                raise _context_full(size.breakdown, "compression is off (auto_compress=False)")
            zones = await self._compress(model, zones, size)
        size = await self._measure(model, zones)
        if size.breakdown.free >= 0:
            return model, zones
        raise _context_full(size.breakdown, "compression could not make it fit")

    async def _recall_messages(self, model: BoundModel, zones: Zones) -> Zones:
        """Send what the turn's words ask for, and make room for it; the zones to send."""
        recall, said = self._recall, self._said()
        if (found := await recall.find(model, zones, said)) is None:
            return zones
        size = await self._measure(model, zones)
        if size.breakdown.free < 0:
            if model.options.auto_compress:
                with suppress(ContextFull, CompressionError):
                    zones = await self._compress(model, zones, size)
            recall.drop()
            room = (await self._measure(model, zones)).breakdown.free
            found = await recall.find(model, zones, said, max(room, 0))
            await self._measure(model, zones)
        if found is not None:
            self._post(MessagesRecalled(self._turn_id, found))
        return zones

    async def _compress(self, model: BoundModel, zones: Zones, size: RequestSize) -> Zones:
        breakdown = size.breakdown
        pending = size.counts.total(self._said()) * size.factor
        stored = breakdown.immutable + breakdown.compressed + breakdown.incremental - int(pending)
        room = breakdown.free + stored if breakdown.window else stored
        if not (len(zones.compressed) or len(zones.incremental)):
            raise _context_full(breakdown, "there is nothing left to compress")
        if room <= breakdown.immutable:
            raise _context_full(breakdown, "what can't be compressed is too much by itself")
        budget = int(room * _TARGET)
        if self._overflows:
            budget = min(budget, int(stored * _AFTER_OVERFLOW))
        try:
            result = await self._plan(model, zones, budget, room)
        except SummaryRejected as refusal:
            raise _context_full(breakdown, str(refusal)) from refusal
        if result is None:
            raise _context_full(breakdown, "there is nothing left to compress")
        self._compressed = True
        if result.report.usage != Usage():
            self._note_usage(model, "", result.report.usage)
        if self._history is not None:
            smaller = result.apply_to(zones)
            self._history = zones if smaller is None else smaller
            return self._history
        reply: Reply[Zones] = Reply()
        self._post(CompressionReady(self._turn_id, result, reply))
        return await reply

    async def _plan(
        self, model: BoundModel, zones: Zones, budget: int, room: int
    ) -> CompressionResult | None:
        """Apply the turn's strategy to `zones`.

        Where nothing else is left, what was said last may go too if the turn says something
        itself: otherwise no turn could ever follow a group that leaves no room.
        """
        given = model, self._config.strategy, self._config.hook, zones
        pinned = self._opening_ids & self._stored_ids
        result = await plan_compression(*given, budget, room, pinned=pinned)
        if result is None and self._pending and not self._stored_ids:
            return await plan_compression(*given, budget, room, allow_newest=True)
        return result


def _user_ids(messages: tuple[TurnMessage, ...]) -> frozenset[MessageId]:
    return frozenset(said.record.id for said in messages if said.record.role is Role.USER)


def _options_after(options: SendOptions, answers: ToolRound) -> SendOptions:
    """The options of the calls that follow a round."""
    choice = answers.tool_choice or release_tool_choice(options.tool_choice)
    changes: dict[str, object] = {}
    if answers.tools is not None:
        changes["tools"] = tuple(answers.tools)
    if choice != options.tool_choice:
        changes["tool_choice"] = choice
    return options.model_copy(update=changes) if changes else options


def _context_full(breakdown: TokenBreakdown, why: str) -> ContextFull:
    return ContextFull(
        needed=breakdown.total,
        window=breakdown.window,
        reserve=breakdown.reserve,
        immutable=breakdown.immutable,
        compressed=breakdown.compressed,
        incremental=breakdown.incremental,
        scratch=breakdown.scratch,
        tools=breakdown.tools,
        instructions=breakdown.instructions,
        why=why,
    )
