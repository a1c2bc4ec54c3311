"""What a compression did."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_context.messages import MessageId, Usage

__all__ = ["CompressionReport", "ZoneTokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneTokens:
    """Tokens per zone."""

    immutable: int
    compressed: int
    incremental: int

    @property
    def total(self) -> int:
        """Of the three zones."""
        return self.immutable + self.compressed + self.incremental


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionReport:
    """What a compression did, or that there was nothing to do."""

    strategy: str
    """The steps that changed something, joined by `+`; empty if there was nothing to do."""
    before: ZoneTokens
    after: ZoneTokens
    removed_ids: tuple[MessageId, ...] = ()
    """What is no longer in the compressed and incremental zones."""
    shortened_ids: tuple[MessageId, ...] = ()
    """Tool results that now hold a stub."""
    summary_id: MessageId | None = None
    usage: Usage = field(default_factory=Usage)
    """Total usage of the model calls."""

    @property
    def changed(self) -> bool:
        """Whether anything was done."""
        return bool(self.removed_ids or self.shortened_ids)
