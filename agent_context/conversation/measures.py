"""What a conversation says of its size and of its prompt cache, counted beside the I/O loop."""

from __future__ import annotations

from msgspec.structs import replace

from agent_context.breakdown import Breakdown
from agent_context.conversation.exchange import Exchange, scratch_of
from agent_context.conversation.prefixes import Books, prefix_of
from agent_context.ledger import LedgerReport
from agent_context.options import SendOptions
from agent_context.runtime import Reply, io_loop
from agent_context.zones import Zones

__all__ = ["accounted", "estimated"]


def estimated(exchange: Exchange, zones: Zones, chosen: SendOptions) -> Reply[Breakdown]:
    """What a turn with these options would take of the window."""
    return io_loop().offload(exchange.measure, zones, scratch_of(chosen), chosen)


def accounted(
    exchange: Exchange, books: Books, zones: Zones, chosen: SendOptions
) -> Reply[LedgerReport]:
    """What the turns had from caches, and what one with these options would have."""
    scratch, before, totals = scratch_of(chosen), books.before(), books.totals

    def report() -> LedgerReport:
        whole, stored = exchange.instructed(zones, chosen), len(zones.incremental)
        breakdown = exchange.measure(zones, scratch, chosen)
        prefix = prefix_of(exchange, before, whole, stored, scratch, chosen, breakdown)
        return replace(totals, next=prefix.report)

    return io_loop().offload(report)
