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
from agent_context._actor.model_client import ModelClient
from agent_context._actor.state import ActorState
from agent_context._context.stored_message import StoredMessage
from agent_context._context.token_breakdown import TokenBreakdown
from agent_context._context.zones import Zones
from agent_context.messages import Usage
from agent_context.options import SendOptions
from agent_context.prompt_cache import (
    CacheUsageReport,
    PrefixReport,
    SentRequest,
    SharedPrefix,
    cache_entry_ends,
    compare_requests,
    predict_cache_use,
)

__all__ = ["PrefixComparison", "PreviousRequest", "PromptCacheTracker", "compare_prefix"]


class PreviousRequest(Struct, frozen=True):
    """What a request is compared with."""

    last: SentRequest | None = None
    compressed: bool = False
    """Whether a compression came since."""


class PrefixComparison(Struct, frozen=True):
    """A request, and how it compares with the one before."""

    sent: SentRequest
    report: PrefixReport


def compare_prefix(
    client: ModelClient,
    before: PreviousRequest,
    zones: Zones,
    stored: int,
    trailing: tuple[StoredMessage, ...],
    options: SendOptions,
    breakdown: TokenBreakdown,
) -> PrefixComparison:
    """Compare the request that says `zones` and `trailing`, and takes `breakdown`.

    So many of its incremental messages are `stored`.
    """
    last, rule = before.last, client.facts(options).cache
    sent = SentRequest(
        backend=client.backend,
        head=client.prefix_fields(options),
        zones=zones,
        trailing=trailing,
        stored=stored,
        tokens=breakdown.total - breakdown.scratch,
        when=time.monotonic(),
    )
    shared = SharedPrefix()
    if last is not None:
        dialect = client.backend.dialect
        shared = compare_requests(last, sent, dialect, compressed=before.compressed)
    weigh = _prefix_counter(client, sent.zones, options, breakdown)
    report = predict_cache_use(last, sent, shared, total=breakdown.total, rule=rule, weigh=weigh)
    if ends := cache_entry_ends(last, sent.zones, trailing, shared, rule):
        sent = replace(sent, ends=ends)
    return PrefixComparison(sent, report)


def _prefix_counter(
    client: ModelClient, zones: Zones, options: SendOptions, breakdown: TokenBreakdown
) -> Callable[[int], int]:
    def weigh(records: int) -> int:
        said = client.token_counts(options).total(islice(zones, records))
        factor = client.calibration.factor
        return math.ceil(said * factor) + breakdown.tools + breakdown.overhead

    return weigh


class PromptCacheTracker:
    """The last request that was answered, and the totals. Only the actor touches them."""

    __slots__ = ("_compressions", "_last", "_state", "totals")

    def __init__(self, state: ActorState) -> None:
        self._state = state
        self._last: SentRequest | None = None
        self._compressions = 0
        self.totals = CacheUsageReport()

    def previous_request(self) -> PreviousRequest:
        """What the next request is compared with."""
        return PreviousRequest(self._last, self._compressions != self._state.current.compressions)

    def announce_changed_prefix(self, turn_id: str, report: PrefixReport) -> None:
        """A request goes out that doesn't begin with the last one."""
        cause = report.cause
        if cause is not None:
            self._state.announce(
                lambda: partial(
                    events.PromptPrefixChanged,
                    turn_id=turn_id,
                    cause=cause,
                    fields=report.fields,
                    at=report.at,
                    tokens=report.before - report.shared,
                )
            )

    def remember(self, prefix: PrefixComparison | None, *, stored: bool) -> None:
        """This request reached the model; its messages were `stored` or not."""
        if prefix is None:
            return
        sent = prefix.sent
        if stored:
            sent = replace(sent, stored=len(sent.zones.incremental))
        self._last = sent
        self._compressions = self._state.current.compressions

    def record_turn(
        self, turn_id: str, prefix: PrefixComparison | None, usage: Usage, *, stored: bool
    ) -> None:
        """The same, and this is what the vendor counted."""
        if prefix is None:
            return
        report = replace(prefix.report, usage=usage)
        self.totals = self.totals.with_turn(report)
        if report.missed:
            self._announce_miss(turn_id, report.predicted or 0, report.cached or 0)
        if usage.input_tokens and report.total:
            tokens = prefix.sent.tokens * usage.input_tokens // report.total
            prefix = PrefixComparison(replace(prefix.sent, tokens=tokens), report)
        self.remember(prefix, stored=stored)

    def _announce_miss(self, turn_id: str, predicted: int, cached: int) -> None:
        self._state.announce(
            lambda: partial(
                events.PromptCacheMiss, turn_id=turn_id, predicted=predicted, cached=cached
            )
        )
