"""What fills the window, part by part, and how estimates are corrected."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

__all__ = ["TokenBreakdown", "TokenCalibration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBreakdown:
    """The size of a request, part by part, in tokens."""

    immutable: int
    compressed: int
    incremental: int
    scratch: int
    tools: int
    instructions: int = 0
    """`SendOptions.instructions`, sent besides the immutable zone."""
    overhead: int = 0
    """Fixed cost of any request, besides its messages."""
    reserve: int
    """Reserved for the answer."""
    window: int
    """The model's window, input and output together; 0 if unknown."""
    exact: bool = False
    """Whether texts were counted in the model's own vocabulary."""

    @property
    def total(self) -> int:
        """The whole request, without the reserve."""
        zones = self.immutable + self.compressed + self.incremental
        return zones + self.instructions + self.scratch + self.tools + self.overhead

    @property
    def free(self) -> int:
        """What the request and the reserve leave of the window; negative if they don't fit.

        0 if the window isn't known.
        """
        return self.window - self.total - self.reserve if self.window else 0


_GOES_OUT = (
    "immutable", "compressed", "incremental", "instructions", "scratch", "tools", "overhead",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenCalibration:
    """What a conversation's estimates are multiplied by, learned from what the vendor reports."""

    factor: float = 1.0

    def learn(self, estimated: int, reported: int) -> TokenCalibration:
        """Half way to what `reported` says of `estimated`, an estimate that was not calibrated.

        A report of less than half or more than three times the estimate is about something else.
        """
        if estimated <= 0 or not 0.5 <= (ratio := reported / estimated) <= 3.0:
            return self
        return TokenCalibration(min(2.0, max(0.75, (self.factor + ratio) / 2)))

    def apply(self, raw: TokenBreakdown) -> TokenBreakdown:
        """With every part that goes out multiplied, and so with their sum."""
        if self.factor == 1.0:
            return raw
        parts = {name: math.ceil(getattr(raw, name) * self.factor) for name in _GOES_OUT}
        return replace(raw, **parts)
