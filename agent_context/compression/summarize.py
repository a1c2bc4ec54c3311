"""Replacing the older part of a history by a summary that the model writes."""

from __future__ import annotations

from dataclasses import dataclass

from agent_context.compression.strategy import (
    CompressionPlan,
    PlanningView,
    Strategy,
    SummaryRequest,
)
from agent_context.errors import InvalidOptions

__all__ = ["PROMPT", "Summarize"]

PROMPT = (
    "Summarise the conversation so far, so that it can go on from your summary alone. Keep every "
    "name, number, date, decision, open question and result that may still matter. Do not call "
    "tools and do not answer anything: write the summary only."
)
_SMALLEST_TARGET = 64


@dataclass(frozen=True, slots=True)
class Summarize(Strategy):
    """The model summarises all but the newest `keep` messages, rounded to whole groups.

    Earlier summaries are rolled up into the new one.
    """

    keep: int
    prompt: str | None = None
    """What the model is asked; None takes `PROMPT`."""
    target: int | None = None
    """Maximum tokens of the summary; None takes a quarter of what it replaces."""
    share: float | None = None
    """With it as many of the newest messages stay as fit this share of the budget (above 0, below
    1), and at least `keep`."""

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise InvalidOptions(f"Summarize: keep is {self.keep}, must be >= 0")
        if self.target is not None and self.target < 1:
            raise InvalidOptions(f"Summarize: target is {self.target}, must be at least 1")
        if self.share is not None and not 0 < self.share < 1:
            raise InvalidOptions(f"Summarize: share is {self.share}, must be between 0 and 1")

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """Cut before the newest messages that stay, and ask for a summary of the rest."""
        cut = view.newest_cut(keep=self.keep)
        if self.share is not None:
            cut = min(cut, view.oldest_cut_within(int(view.budget * self.share)))
        if not cut:
            return None
        gone, _ = view.split(cut)
        replaced = view.tokens(view.zones.compressed) + view.tokens(gone)
        if self.share is not None and replaced <= _SMALLEST_TARGET:
            return None  # a summary would not be shorter
        target = self.target or max(replaced // 4, _SMALLEST_TARGET)
        return CompressionPlan(cut=cut, summary=SummaryRequest(self.prompt or PROMPT, target))
