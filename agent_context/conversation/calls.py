"""The part of a turn, or of a compression, that takes time: it runs on the I/O loop.

It works on the zones that it was given, reports back with one message, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from agent_context.breakdown import Breakdown
from agent_context.compression.editor import Edit, Editor
from agent_context.compression.run import Compaction, Compressor
from agent_context.compression.strategy import Strategy
from agent_context.compression.summary import Refused, Summariser
from agent_context.conversation.exchange import Exchange, scratch_of
from agent_context.conversation.prefixes import Before, Prefix, prefix_of
from agent_context.errors import BackendError, ContextFull, ErrorKind
from agent_context.ledger import PrefixReport
from agent_context.messages import Completion, Message
from agent_context.options import SendOptions
from agent_context.records import Record
from agent_context.runtime import inside, io_loop
from agent_context.stream import Channel
from agent_context.stream_events import Assembly
from agent_context.zones import Zones

__all__ = ["Call", "Swap", "compaction_of", "converse"]

_TRIES = 3
_TARGET = 0.8
"""Compression aims at this share of the room, so that the next turns don't need it again."""

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
    channel: Channel | None
    before: Before
    broken: Callable[[PrefixReport], object]
    """Told when a request goes out that doesn't begin with the one before it."""
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

    @property
    def share(self) -> float:
        """How much of the window the request took."""
        return self.breakdown.total / self.breakdown.window if self.breakdown else 0.0


async def converse(call: Call, zones: Zones, swap: Swap) -> Completion:
    """Make the request fit, send it, and return the answer.

    Raises `ContextFull` before any network traffic, and what the backend raises.
    """
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
    _compare(call, zones)
    request = exchange.request(zones.extend(call.records), scratch_of(options), options)
    if call.channel is None:
        return await exchange.complete(request)
    return await exchange.stream(request, call.assembly, call.channel.put)


def _compare(call: Call, zones: Zones) -> None:
    if call.breakdown is None:
        return
    exchange, options, scratch = call.exchange, call.options, scratch_of(call.options)
    before = Before(call.before.last, call.before.compressed or call.compressed)
    call.prefix = prefix_of(exchange, before, zones, call.records, scratch, options, call.breakdown)
    if call.prefix.report.cause is not None:
        call.broken(call.prefix.report)


async def _measured(call: Call, zones: Zones) -> Breakdown:
    exchange, options, whole = call.exchange, call.options, zones.extend(call.records)
    scratch = scratch_of(options)
    if exchange.weighs_quickly(whole, scratch, options):
        weighed = exchange.weigh(whole, scratch, options)
    else:
        weighed = await io_loop().offload(exchange.weigh, whole, scratch, options)
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
    stored = breakdown.immutable + breakdown.compressed + breakdown.incremental
    room = breakdown.window - breakdown.reserve - (breakdown.total - stored)
    if room <= breakdown.immutable:
        raise _full(breakdown, "what can't be compressed is too much by itself")
    budget = int(room * _TARGET)
    try:
        compaction = await compaction_of(
            call.exchange, call.options, call.strategy, call.editor, zones, budget
        )
    except Refused as refusal:
        raise _full(breakdown, str(refusal)) from refusal
    if compaction is None:
        raise _full(breakdown, "there is nothing left to compress")
    zones = await swap(compaction)
    call.compressed = True
    return zones


async def compaction_of(
    exchange: Exchange,
    options: SendOptions,
    strategy: Strategy,
    editor: Editor | None,
    zones: Zones,
    budget: int | None = None,
) -> Compaction | None:
    """What `strategy` makes of `zones`; None if there is nothing to do.

    Without a `budget` (tokens of the three zones) it aims at half of what there is.
    """
    if budget is None:
        whole = await io_loop().offload(exchange.measure, zones, (), options)
        budget = (whole.immutable + whole.compressed + whole.incremental) // 2
    compressor = Compressor(
        count=exchange.counts(options).of,
        summariser=Summariser(exchange, options),
        editor=_guarded(editor, exchange.conversation_id),
    )
    return await compressor.run(strategy, zones, int(budget / exchange.calibration.factor))


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
        why=why,
    )
