"""What a conversation knows of its vendors' prompt caches: its last request, and the totals."""

from __future__ import annotations

import time
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from agent_context import events
from agent_context._actor.model_client import BoundModel, RequestSize
from agent_context._actor.state import ActorState
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.messages import Usage
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
    """The request that the next one is compared with."""

    last: SentRequest | None = None
    compressed: bool = False
    """Whether a compression came since."""


class PrefixComparison(Struct, frozen=True):
    """A request, and how it compares with the one before."""

    sent: SentRequest
    report: PrefixReport

    def to_sent_request(self, usage: Usage, *, stored: bool) -> SentRequest:
        """The request after it was answered; its messages are `stored` by now, or not."""
        sent, total = self.sent, self.report.total
        if usage.input_tokens and total:
            sent = replace(sent, tokens=sent.tokens * usage.input_tokens // total)
        return replace(sent, stored=len(sent.zones.incremental)) if stored else sent


def compare_prefix(
    model: BoundModel,
    previous: PreviousRequest,
    zones: Zones,
    stored: int,
    trailing: tuple[StoredMessage, ...],
    size: RequestSize,
) -> PrefixComparison:
    """Compare the request that says `zones`, instructions included, and `trailing`.

    So many of its incremental messages are `stored`.
    """
    last, policy, breakdown = previous.last, model.facts.cache, size.breakdown
    sent = SentRequest(
        backend=model.backend,
        head=model.prefix_fields(),
        zones=zones,
        trailing=trailing,
        stored=stored,
        tokens=breakdown.total - breakdown.scratch,
        when=time.monotonic(),
    )
    shared = SharedPrefix()
    if last is not None:
        dialect = model.backend.dialect
        shared = compare_requests(last, sent, dialect, compressed=previous.compressed)
    report = predict_cache_use(
        last,
        sent,
        shared,
        total=breakdown.total,
        rule=policy,
        weigh=lambda records: size.prefix_tokens(zones, records),
    )
    if ends := cache_entry_ends(last, zones, trailing, shared, policy):
        sent = replace(sent, ends=ends)
    return PrefixComparison(sent, report)


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
        """Announce a request that doesn't begin with the previous one."""
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

    def remember(self, sent: SentRequest) -> None:
        """Remember a request that reached the model: the next one is compared with it."""
        self._last = sent
        self._compressions = self._state.current.compressions

    def record_turn(
        self, turn_id: str, comparison: PrefixComparison | None, usage: Usage, *, stored: bool
    ) -> None:
        """Remember an answered request and its usage."""
        if comparison is None:
            return
        report = replace(comparison.report, usage=usage)
        self.totals = self.totals.with_turn(report)
        if report.missed:
            self._announce_miss(turn_id, report.predicted or 0, report.cached or 0)
        self.remember(comparison.to_sent_request(usage, stored=stored))

    def _announce_miss(self, turn_id: str, predicted: int, cached: int) -> None:
        self._state.announce(
            lambda: partial(
                events.PromptCacheMiss, turn_id=turn_id, predicted=predicted, cached=cached
            )
        )
