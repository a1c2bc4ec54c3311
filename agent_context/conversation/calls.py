"""The part of a turn, or of a compression, that takes time: it runs on the I/O loop.

It works on the zones that it was given, reports back with one message, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

from msgspec import Struct

from agent_context.breakdown import Breakdown
from agent_context.compression.editor import Edit, Editor
from agent_context.compression.run import Compaction, Compressor
from agent_context.compression.strategy import Strategy
from agent_context.compression.summary import Refused, Summariser
from agent_context.conversation.exchange import Exchange, scratch_of
from agent_context.conversation.prefixes import Before, Prefix, prefix_of
from agent_context.errors import BackendError, ContextFull, ErrorKind, InvalidMessage
from agent_context.ledger import PrefixReport
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.records import Record, record_of
from agent_context.rounds import Round, ToolLoop
from agent_context.runtime import inside, io_loop
from agent_context.stream import Channel
from agent_context.stream_events import Assembly, RoundFinished, StreamEvent
from agent_context.zones import Zones

__all__ = ["Call", "Keep", "Note", "RoundKept", "Swap", "compaction_of", "converse"]

_TRIES = 3
_TARGET = 0.8
"""Compression aims at this share of the room, so that the next turns don't need it again."""

_CHECKPOINT = 1.0
"""Seconds between two notes of what has arrived."""

Note = Callable[[], Awaitable[None] | None]
"""Writes down what is known of the turn, durably when what it returns is settled."""

Swap = Callable[[Compaction], Awaitable[Zones]]
"""Puts a compaction in place, if it still fits there, and gives the zones that may be sent."""


@dataclass(slots=True)
class Call:
    """One turn's model call: what it needs, and what has come of it."""

    exchange: Exchange
    options: SendOptions
    strategy: Strategy
    editor: Editor | None
    records: tuple[Record, ...]
    """What is said with the turn, behind the stored messages."""
    context: tuple[Record, ...]
    """What stands in front of it and is never stored."""
    history: Zones | None
    """What is sent in the place of the stored zones."""
    loop: ToolLoop | None
    channel: Channel | None
    before: Before
    broken: Callable[[PrefixReport], object]
    """Told when a request goes out that doesn't begin with the one before it."""
    note: Note | None = None
    """None if nothing outlives the process."""
    assembly: Assembly = field(default_factory=Assembly)
    compressed: bool = False
    """Whether the turn itself compressed anything."""
    weighed: int = 0
    """Tokens of the request that was sent, as they are counted here."""
    breakdown: Breakdown | None = None
    """The same part by part, and calibrated."""
    prefix: Prefix | None = None
    """How the request that was sent compares with the one before it."""
    overflowed: bool = False
    """The vendor found the request too long although it was counted to fit."""
    own: frozenset[str] = frozenset()
    """Ids of what the turn has stored so far."""
    calling: Completion | None = None
    """The answer whose tool calls are being carried out."""
    results: list[Message] = field(default_factory=list[Message])
    """What has come of them so far."""

    def begin_round(self, records: tuple[Record, ...]) -> None:
        """What came of the last call is stored: forget it, and say `records` with the next."""
        self.records, self.calling, self.results = records, None, []
        self.assembly, self.overflowed = Assembly(), False

    @property
    def share(self) -> float:
        """How much of the window the request took."""
        return self.breakdown.total / self.breakdown.window if self.breakdown else 0.0


class RoundKept(Struct, frozen=True):
    """A round is stored."""

    zones: Zones
    own: frozenset[str]
    answer: Message
    """As it was stored, and so are the results."""
    results: tuple[Message, ...]


Keep = Callable[[Completion, tuple[Message, ...]], Awaitable[RoundKept]]
"""Stores a round: the answer and the results of its calls."""


async def converse(call: Call, zones: Zones, swap: Swap, keep: Keep) -> Completion:
    """Make the request fit, send it, and return the answer; with a loop, the last one.

    Raises `ContextFull` before any network traffic, and what the backend or the loop raises.
    """
    if call.loop is not None and call.options.commit == "manual" and call.history is None:
        call.history = zones  # the rounds are stored nowhere else
    if call.history is not None:
        zones = call.history  # which may be empty
    while True:
        completion = await _answered(call, zones, swap)
        if call.loop is None or not completion.message.tool_calls:
            return completion
        call.calling, call.results = completion, []
        await _noted(call)
        answers = await call.loop.answer(completion, _hearing(call, call.results))
        if answers is None:
            return completion
        call.results = list(call.results)
        zones = await _next_round(call, keep, completion, answers)


async def _noted(call: Call) -> None:
    """Before tools run: whoever finds the turn after a crash must know that they may have."""
    if call.note is not None and (noted := call.note()) is not None:
        await noted


def _hearing(call: Call, results: list[Message]) -> Callable[[Message], object]:
    """Takes in results as long as these are the call's: one that comes late is none of its next."""

    def heard(result: Message) -> None:
        if not isinstance(cast("object", result), Message):
            raise InvalidMessage(f"a result is a Message, not {type(result).__name__}")
        record_of(result)  # whether it can be stored
        if call.results is results:
            results.append(result)
            if call.note is not None:
                call.note()

    return heard


async def _next_round(call: Call, keep: Keep, completion: Completion, answers: Round) -> Zones:
    asked = call.records
    kept = await keep(completion, tuple(answers.results))
    completion = completion.model_copy(update={"message": kept.answer})
    if call.history is not None:
        said = (kept.answer, *kept.results)
        zones = call.history = call.history.extend((*asked, *map(record_of, said)))
    else:
        zones, call.own = kept.zones, kept.own
    if answers.options is not None:
        call.options = answers.options.over(call.options)
    if call.channel is not None:
        await call.channel.put(RoundFinished(completion, kept.results))
    return zones


async def _answered(call: Call, zones: Zones, swap: Swap) -> Completion:
    while True:
        zones = await _fitted(call, zones, swap)
        try:
            return await _answer(call, zones)
        except BackendError as error:
            if not _worth_compressing(call, error):
                raise
            call.overflowed = True
            zones = await _smaller(call, zones, swap, await _measured(call, zones))


def _worth_compressing(call: Call, error: BackendError) -> bool:
    overflow = error.kind is ErrorKind.CONTEXT_OVERFLOW
    return overflow and call.options.auto_compress and call.assembly.empty and not call.overflowed


async def _answer(call: Call, zones: Zones) -> Completion:
    exchange, options = call.exchange, call.options
    said, trailing = _laid_out(call, zones)
    _compare(call, said, trailing)
    request = exchange.request(said, trailing, options)
    if call.channel is None:
        return await exchange.complete(request)
    return await exchange.stream(request, call.assembly, _emitting(call, call.channel))


def _emitting(call: Call, channel: Channel) -> Callable[[StreamEvent], Awaitable[None]]:
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


def _laid_out(call: Call, zones: Zones) -> tuple[Zones, tuple[Record, ...]]:
    """The request's zones and what trails them.

    What is never stored follows all that is; with a context so do the turn's own messages, which
    stand behind it, or else the next request would not begin with this one.
    """
    scratch = scratch_of(call.options)
    if not call.context:
        return zones.extend(call.records), scratch
    start = len(zones.incremental)
    for record in reversed(zones.incremental):
        if record.id not in call.own:
            break
        start -= 1
    own = zones.incremental.drop(start)
    return zones.rewind(start), (*call.context, *own, *call.records, *scratch)


def _compare(call: Call, zones: Zones, trailing: tuple[Record, ...]) -> None:
    if call.breakdown is None:
        return
    exchange, options = call.exchange, call.options
    before = Before(call.before.last, call.before.compressed or call.compressed)
    stored = len(zones.incremental) - (0 if call.context else len(call.records))
    zones = exchange.instructed(zones, options)
    call.prefix = prefix_of(exchange, before, zones, stored, trailing, options, call.breakdown)
    if call.prefix.report.cause is not None:
        call.broken(call.prefix.report)


async def _measured(call: Call, zones: Zones) -> Breakdown:
    exchange, options = call.exchange, call.options
    whole = zones.extend(call.records)
    passing = (*call.context, *scratch_of(options))
    if exchange.weighs_quickly(whole, passing, options):
        weighed = exchange.weigh(whole, passing, options)
    else:
        weighed = await io_loop().offload(exchange.weigh, whole, passing, options)
    exchange.forget_all_but(whole, options)
    call.weighed = weighed.total
    call.breakdown = breakdown = call.exchange.calibration.applied(weighed)
    return breakdown


async def _fitted(call: Call, zones: Zones, swap: Swap) -> Zones:
    for _ in range(_TRIES):
        breakdown = await _measured(call, zones)
        if breakdown.free >= 0:
            return zones
        if not call.options.auto_compress:
            raise _full(breakdown, "compression is off (auto_compress=False)")
        zones = await _smaller(call, zones, swap, breakdown)
    breakdown = await _measured(call, zones)
    if breakdown.free >= 0:
        return zones
    raise _full(breakdown, "compression could not make it fit")


async def _smaller(call: Call, zones: Zones, swap: Swap, breakdown: Breakdown) -> Zones:
    room = breakdown.free + _stored(breakdown)
    if room <= breakdown.immutable:
        raise _full(breakdown, "what can't be compressed is too much by itself")
    budget = int(room * _TARGET)
    try:
        compaction = await _compacted(call, zones, budget, room)
    except Refused as refusal:
        raise _full(breakdown, str(refusal)) from refusal
    if compaction is None:
        raise _full(breakdown, "there is nothing left to compress")
    call.compressed = True
    if call.history is not None:
        smaller = compaction.onto(zones)
        call.history = zones if smaller is None else smaller
        return call.history
    return await swap(compaction)


async def _compacted(call: Call, zones: Zones, budget: int, room: int) -> Compaction | None:
    """What the turn's strategy makes of `zones`.

    Where nothing else is left, what was said last may go too if the turn says something itself:
    otherwise no turn could ever follow a group that leaves no room.
    """
    given = call.exchange, call.options, call.strategy, call.editor, zones, budget, room
    compaction = await compaction_of(*given)
    if compaction is None and call.records and not call.own:
        return await compaction_of(*given, followed=True)
    return compaction


def _stored(breakdown: Breakdown) -> int:
    return breakdown.immutable + breakdown.compressed + breakdown.incremental


async def compaction_of(
    exchange: Exchange,
    options: SendOptions,
    strategy: Strategy,
    editor: Editor | None,
    zones: Zones,
    budget: int | None = None,
    room: int = 0,
    *,
    followed: bool = False,
) -> Compaction | None:
    """What `strategy` makes of `zones`; None if there is nothing to do.

    Without a `budget` (tokens of the three zones, of which there is `room` for) it aims at half of
    what there is.
    """
    if budget is None:
        whole = await io_loop().offload(exchange.measure, zones, (), options)
        budget = _stored(whole) // 2
        room = whole.free + _stored(whole)
    compressor = Compressor(
        count=exchange.counts(options).of,
        summariser=Summariser(exchange, options),
        editor=_guarded(editor, exchange.conversation_id),
    )
    factor = exchange.calibration.factor
    return await compressor.run(
        strategy, zones, int(budget / factor), int(room / factor), followed=followed
    )


def _guarded(editor: Editor | None, conversation_id: str) -> Editor | None:
    """The editor, which must not wait for the conversation that waits for it."""
    if editor is None:
        return None
    edit = editor

    def guarded(summary: Message | None, kept: tuple[Message, ...]) -> Edit | None:
        with inside(conversation_id):
            return edit(summary, kept)

    return guarded


def _full(breakdown: Breakdown, why: str) -> ContextFull:
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
