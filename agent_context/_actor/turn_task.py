"""One turn of the model: what runs on the I/O loop, from the request to the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

from msgspec import Struct

from agent_context._actor.model_client import ModelClient, scratch_records
from agent_context._actor.prompt_cache_tracker import (
    PrefixComparison,
    PreviousRequest,
    compare_prefix,
)
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.zones import Zones
from agent_context._runtime import io_loop, reentrancy_scope
from agent_context.compression.executor import CompressionExecutor, CompressionResult
from agent_context.compression.hook import CompressionHook, HookResult
from agent_context.compression.strategy import Strategy
from agent_context.compression.summarizer import Summarizer, SummaryRejected
from agent_context.errors import BackendError, ContextFull, ErrorKind, InvalidMessage
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.prompt_cache import PrefixReport
from agent_context.stream import Channel
from agent_context.stream_events import StreamAccumulator, StreamEvent, ToolRoundFinished
from agent_context.tools.loop import ToolLoop, ToolRound

__all__ = [
    "ApplyCompression",
    "RoundStored",
    "StoreRound",
    "TurnTask",
    "WriteCheckpoint",
    "plan_compression",
    "run_turn",
]

_TRIES = 3
_TARGET = 0.8
"""Compression aims at this share of the room, so that the next turns don't need it again."""

_CHECKPOINT = 1.0
"""Seconds between two notes of what has arrived."""

WriteCheckpoint = Callable[[], Awaitable[None] | None]
"""Writes down what is known of the turn, durably when what it returns is settled."""

ApplyCompression = Callable[[CompressionResult], Awaitable[Zones]]
"""Puts a compaction in place, if it still fits there, and gives the zones that may be sent."""


@dataclass(slots=True)
class TurnTask:
    """One turn's model call: what it needs, and what has come of it."""

    client: ModelClient
    options: SendOptions
    strategy: Strategy
    editor: CompressionHook | None
    records: tuple[StoredMessage, ...]
    """What is said with the turn, behind the stored messages."""
    context: tuple[StoredMessage, ...]
    """What stands in front of it and is never stored."""
    history: Zones | None
    """What is sent in the place of the stored zones."""
    loop: ToolLoop | None
    channel: Channel | None
    before: PreviousRequest
    broken: Callable[[PrefixReport], object]
    """Told when a request goes out that doesn't begin with the one before it."""
    note: WriteCheckpoint | None = None
    """None if nothing outlives the process."""
    assembly: StreamAccumulator = field(default_factory=StreamAccumulator)
    compressed: bool = False
    """Whether the turn itself compressed anything."""
    weighed: int = 0
    """Tokens of the request that was sent, as they are counted here."""
    breakdown: TokenBreakdown | None = None
    """The same part by part, and calibrated."""
    prefix: PrefixComparison | None = None
    """How the request that was sent compares with the one before it."""
    overflowed: bool = False
    """The vendor found the request too long although it was counted to fit."""
    own: frozenset[str] = frozenset()
    """Ids of what the turn has stored so far."""
    calling: Completion | None = None
    """The answer whose tool calls are being carried out."""
    results: list[Message] = field(default_factory=list[Message])
    """What has come of them so far."""

    def begin_round(self, records: tuple[StoredMessage, ...]) -> None:
        """What came of the last call is stored: forget it, and say `records` with the next."""
        self.records, self.calling, self.results = records, None, []
        self.assembly, self.overflowed = StreamAccumulator(), False

    @property
    def share(self) -> float:
        """How much of the window the request took."""
        return self.breakdown.total / self.breakdown.window if self.breakdown else 0.0


class RoundStored(Struct, frozen=True):
    """A round is stored."""

    zones: Zones
    own: frozenset[str]
    answer: Message
    """As it was stored, and so are the results."""
    results: tuple[Message, ...]


StoreRound = Callable[[Completion, tuple[Message, ...]], Awaitable[RoundStored]]
"""Stores a round: the answer and the results of its calls."""


async def run_turn(
    call: TurnTask, zones: Zones, swap: ApplyCompression, keep: StoreRound
) -> Completion:
    """Make the request fit, send it, and return the answer; with a loop, the last one.

    Raises `ContextFull` before any network traffic, and what the backend or the loop raises.
    """
    if call.loop is not None and call.options.commit == "manual" and call.history is None:
        call.history = zones  # the rounds are stored nowhere else
    if call.history is not None:
        zones = call.history  # which may be empty
    while True:
        completion = await _call_model(call, zones, swap)
        if call.loop is None or not completion.message.tool_calls:
            return completion
        call.calling, call.results = completion, []
        await _write_checkpoint(call)
        answers = await call.loop.answer(completion, _result_sink(call, call.results))
        if answers is None:
            return completion
        call.results = list(call.results)
        zones = await _next_round(call, keep, completion, answers)


async def _write_checkpoint(call: TurnTask) -> None:
    """Before tools run: whoever finds the turn after a crash must know that they may have."""
    if call.note is not None and (noted := call.note()) is not None:
        await noted


def _result_sink(call: TurnTask, results: list[Message]) -> Callable[[Message], object]:
    """Takes in results as long as these are the call's: one that comes late is none of its next."""

    def heard(result: Message) -> None:
        if not isinstance(cast("object", result), Message):
            raise InvalidMessage(f"a result is a Message, not {type(result).__name__}")
        from_message(result)  # whether it can be stored
        if call.results is results:
            results.append(result)
            if call.note is not None:
                call.note()

    return heard


async def _next_round(
    call: TurnTask, keep: StoreRound, completion: Completion, answers: ToolRound
) -> Zones:
    asked = call.records
    kept = await keep(completion, tuple(answers.results))
    completion = completion.model_copy(update={"message": kept.answer})
    if call.history is not None:
        said = (kept.answer, *kept.results)
        zones = call.history = call.history.extend((*asked, *map(from_message, said)))
    else:
        zones, call.own = kept.zones, kept.own
    call.options = _options_after(call.options, answers)
    if call.channel is not None:
        await call.channel.put(ToolRoundFinished(completion, kept.results))
    return zones


def _options_after(options: SendOptions, answers: ToolRound) -> SendOptions:
    """The options of the calls that follow a round."""
    changes: dict[str, object] = {}
    if answers.tools is not None:
        changes["tools"] = tuple(answers.tools)
    if answers.tool_choice is not None:
        changes["tool_choice"] = answers.tool_choice
    return options.model_copy(update=changes) if changes else options


async def _call_model(call: TurnTask, zones: Zones, swap: ApplyCompression) -> Completion:
    while True:
        zones = await _ensure_fits(call, zones, swap)
        try:
            return await _request_answer(call, zones)
        except BackendError as error:
            if not _worth_compressing(call, error):
                raise
            call.overflowed = True
            zones = await _compress(call, zones, swap, await _measure(call, zones))


def _worth_compressing(call: TurnTask, error: BackendError) -> bool:
    overflow = error.kind is ErrorKind.CONTEXT_OVERFLOW
    return overflow and call.options.auto_compress and call.assembly.empty and not call.overflowed


async def _request_answer(call: TurnTask, zones: Zones) -> Completion:
    client, options = call.client, call.options
    said, trailing = _layout(call, zones)
    _compare(call, said, trailing)
    request = client.request(said, trailing, options)
    if call.channel is None:
        return await client.complete(request)
    return await client.stream(request, call.assembly, _event_sink(call, call.channel))


def _event_sink(call: TurnTask, channel: Channel) -> Callable[[StreamEvent], Awaitable[None]]:
    """Hands events over and, with somewhere to note it, notes down what has arrived."""
    note = call.note
    if note is None:
        return channel.put
    clock = asyncio.get_running_loop().time
    last = clock()

    async def put(event: StreamEvent) -> None:
        nonlocal last
        if clock() - last >= _CHECKPOINT:
            last = clock()
            note()
        await channel.put(event)

    return put


def _layout(call: TurnTask, zones: Zones) -> tuple[Zones, tuple[StoredMessage, ...]]:
    """The request's zones and what trails them.

    What is never stored follows all that is; with a context so do the turn's own messages, which
    stand behind it, or else the next request would not begin with this one.
    """
    scratch = scratch_records(call.options)
    if not call.context:
        return zones.extend(call.records), scratch
    start = len(zones.incremental)
    for record in reversed(zones.incremental):
        if record.id not in call.own:
            break
        start -= 1
    own = zones.incremental.tail(start)
    return zones.truncate(start), (*call.context, *own, *call.records, *scratch)


def _compare(call: TurnTask, zones: Zones, trailing: tuple[StoredMessage, ...]) -> None:
    if call.breakdown is None:
        return
    client, options = call.client, call.options
    before = PreviousRequest(call.before.last, call.before.compressed or call.compressed)
    stored = len(zones.incremental) - (0 if call.context else len(call.records))
    zones = client.with_instructions(zones, options)
    call.prefix = compare_prefix(client, before, zones, stored, trailing, options, call.breakdown)
    if call.prefix.report.cause is not None:
        call.broken(call.prefix.report)


async def _measure(call: TurnTask, zones: Zones) -> TokenBreakdown:
    client, options = call.client, call.options
    whole = zones.extend(call.records)
    passing = (*call.context, *scratch_records(options))
    if client.counts_quickly(whole, passing, options):
        weighed = client.count_tokens(whole, passing, options)
    else:
        weighed = await io_loop().offload(client.count_tokens, whole, passing, options)
    client.prune_counts(whole, options)
    call.weighed = weighed.total
    call.breakdown = breakdown = call.client.calibration.apply(weighed)
    return breakdown


async def _ensure_fits(call: TurnTask, zones: Zones, swap: ApplyCompression) -> Zones:
    for _ in range(_TRIES):
        breakdown = await _measure(call, zones)
        if breakdown.free >= 0:
            return zones
        if not call.options.auto_compress:
            raise _context_full(breakdown, "compression is off (auto_compress=False)")
        zones = await _compress(call, zones, swap, breakdown)
    breakdown = await _measure(call, zones)
    if breakdown.free >= 0:
        return zones
    raise _context_full(breakdown, "compression could not make it fit")


async def _compress(
    call: TurnTask, zones: Zones, swap: ApplyCompression, breakdown: TokenBreakdown
) -> Zones:
    room = breakdown.free + _stored_tokens(breakdown)
    if room <= breakdown.immutable:
        raise _context_full(breakdown, "what can't be compressed is too much by itself")
    budget = int(room * _TARGET)
    try:
        compaction = await _plan(call, zones, budget, room)
    except SummaryRejected as refusal:
        raise _context_full(breakdown, str(refusal)) from refusal
    if compaction is None:
        raise _context_full(breakdown, "there is nothing left to compress")
    call.compressed = True
    if call.history is not None:
        smaller = compaction.apply_to(zones)
        call.history = zones if smaller is None else smaller
        return call.history
    return await swap(compaction)


async def _plan(call: TurnTask, zones: Zones, budget: int, room: int) -> CompressionResult | None:
    """What the turn's strategy makes of `zones`.

    Where nothing else is left, what was said last may go too if the turn says something itself:
    otherwise no turn could ever follow a group that leaves no room.
    """
    given = call.client, call.options, call.strategy, call.editor, zones, budget, room
    compaction = await plan_compression(*given)
    if compaction is None and call.records and not call.own:
        return await plan_compression(*given, followed=True)
    return compaction


def _stored_tokens(breakdown: TokenBreakdown) -> int:
    return breakdown.immutable + breakdown.compressed + breakdown.incremental


async def plan_compression(
    client: ModelClient,
    options: SendOptions,
    strategy: Strategy,
    editor: CompressionHook | None,
    zones: Zones,
    budget: int | None = None,
    room: int = 0,
    *,
    followed: bool = False,
) -> CompressionResult | None:
    """What `strategy` makes of `zones`; None if there is nothing to do.

    Without a `budget` (tokens of the three zones, of which there is `room` for) it aims at half of
    what there is.
    """
    if budget is None:
        whole = await io_loop().offload(client.estimate, zones, (), options)
        budget = _stored_tokens(whole) // 2
        room = whole.free + _stored_tokens(whole)
    compressor = CompressionExecutor(
        count=client.token_counts(options).of,
        summariser=Summarizer(client, options),
        editor=_guard_hook(editor, client.conversation_id),
    )
    factor = client.calibration.factor
    return await compressor.run(
        strategy, zones, int(budget / factor), int(room / factor), followed=followed
    )


def _guard_hook(editor: CompressionHook | None, conversation_id: str) -> CompressionHook | None:
    """The editor, which must not wait for the conversation that waits for it."""
    if editor is None:
        return None
    edit = editor

    def guarded(summary: Message | None, kept: tuple[Message, ...]) -> HookResult | None:
        with reentrancy_scope(conversation_id):
            return edit(summary, kept)

    return guarded


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
