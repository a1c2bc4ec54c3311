"""What a conversation remembers of its last request, and what its vendors' caches gave so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from agent_context import events
from agent_context.breakdown import Breakdown
from agent_context.conversation.exchange import Exchange
from agent_context.conversation.state import State
from agent_context.ledger import (
    LedgerReport,
    PrefixReport,
    Sent,
    Shared,
    compared,
    ends_of,
    foretold,
)
from agent_context.messages import Usage
from agent_context.options import SendOptions
from agent_context.records import Record
from agent_context.zones import Zones

__all__ = ["Before", "Books", "Prefix", "prefix_of"]


class Before(Struct, frozen=True):
    """What a request is compared with."""

    last: Sent | None = None
    compressed: bool = False
    """Whether a compression came since."""


class Prefix(Struct, frozen=True):
    """A request, and how it compares with the one before."""

    sent: Sent
    report: PrefixReport


def prefix_of(
    exchange: Exchange,
    before: Before,
    zones: Zones,
    stored: int,
    trailing: tuple[Record, ...],
    options: SendOptions,
    breakdown: Breakdown,
) -> Prefix:
    """Compare the request that says `zones` and `trailing`, and takes `breakdown`.

    So many of its incremental messages are `stored`.
    """
    last, rule = before.last, exchange.facts(options).cache
    sent = Sent(
        backend=exchange.backend,
        head=exchange.head(options),
        zones=zones,
        trailing=trailing,
        stored=stored,
        tokens=breakdown.total - breakdown.scratch,
        when=time.monotonic(),
    )
    shared = Shared()
    if last is not None:
        dialect = exchange.backend.dialect
        shared = compared(last, sent, dialect, compressed=before.compressed)
    weigh = _weighing(exchange, sent.zones, options, breakdown)
    report = foretold(last, sent, shared, total=breakdown.total, rule=rule, weigh=weigh)
    if ends := ends_of(last, sent.zones, trailing, shared, rule):
        sent = replace(sent, ends=ends)
    return Prefix(sent, report)


def _weighing(
    exchange: Exchange, zones: Zones, options: SendOptions, breakdown: Breakdown
) -> Callable[[int], int]:
    def weigh(records: int) -> int:
        said = exchange.counts(options).total(islice(zones, records))
        factor = exchange.calibration.factor
        return math.ceil(said * factor) + breakdown.tools + breakdown.overhead

    return weigh


class Books:
    """The last request that was answered, and the totals. Only the actor touches them."""

    __slots__ = ("_compressions", "_last", "_state", "totals")

    def __init__(self, state: State) -> None:
        self._state = state
        self._last: Sent | None = None
        self._compressions = 0
        self.totals = LedgerReport()

    def before(self) -> Before:
        """What the next request is compared with."""
        return Before(self._last, self._compressions != self._state.moment.compressions)

    def lost(self, turn_id: str, report: PrefixReport) -> None:
        """A request goes out that doesn't begin with the last one."""
        cause = report.cause
        if cause is not None:
            self._state.announce(
                lambda: partial(
                    events.PrefixBroken,
                    turn_id=turn_id,
                    cause=cause,
                    fields=report.fields,
                    at=report.at,
                    tokens=report.before - report.shared,
                )
            )

    def remember(self, prefix: Prefix | None, *, stored: bool) -> None:
        """This request reached the model; its messages were `stored` or not."""
        if prefix is None:
            return
        sent = prefix.sent
        if stored:
            sent = replace(sent, stored=len(sent.zones.incremental))
        self._last = sent
        self._compressions = self._state.moment.compressions

    def enter(self, turn_id: str, prefix: Prefix | None, usage: Usage, *, stored: bool) -> None:
        """The same, and this is what the vendor counted."""
        if prefix is None:
            return
        report = replace(prefix.report, usage=usage)
        self.totals = self.totals.with_turn(report)
        if report.missed:
            self._missed(turn_id, report.predicted or 0, report.cached or 0)
        if usage.input_tokens and report.total:
            tokens = prefix.sent.tokens * usage.input_tokens // report.total
            prefix = Prefix(replace(prefix.sent, tokens=tokens), report)
        self.remember(prefix, stored=stored)

    def _missed(self, turn_id: str, predicted: int, cached: int) -> None:
        self._state.announce(
            lambda: partial(events.CacheMissed, turn_id=turn_id, predicted=predicted, cached=cached)
        )
