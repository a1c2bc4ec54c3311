"""Strategies one after the other, until the history fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_context.compression.recall import Recall
from agent_context.compression.strategy import CompressionPlan, PlanningView, Strategy
from agent_context.compression.summarize import Summarize
from agent_context.compression.truncation import EvictToolResults, TokenBudget
from agent_context.errors import InvalidOptions

__all__ = ["Pipeline", "default_strategy"]


@dataclass(frozen=True, slots=True)
class Pipeline(Strategy):
    """Carry out each strategy in turn and stop as soon as the history fits its budget.

    A step that has nothing to do, or whose summary is refused, makes room for the next one.
    """

    strategies: Sequence[Strategy]

    def __post_init__(self) -> None:
        if not self.strategies:
            raise InvalidOptions("Pipeline: at least one strategy is needed")
        object.__setattr__(self, "strategies", tuple(self.strategies))

    @property
    def steps(self) -> tuple[Strategy, ...]:
        """The steps of all strategies."""
        return tuple(step for strategy in self.strategies for step in strategy.steps)

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """The first step that has something to do."""
        return next((plan for step in self.steps if (plan := step.plan(view))), None)


_RECALL = Recall()


def default_strategy(
    *, keep: int = 2, share: float = 0.75, keep_results: int = 3, recall: Recall | None = _RECALL
) -> Pipeline:
    """What conversations use by default: the gentlest means first.

    Shorten old tool results; then summarise what is older than the newest messages that fit
    `share` of the budget, of which there are at least `keep`; then drop the oldest until it fits.
    Of what went that way each turn gets back what it asks for, by `recall`; None sends nothing
    again.
    """
    summarize = Summarize(keep=keep, share=share)
    steps = (EvictToolResults(keep_results), summarize, TokenBudget())
    return Pipeline(steps if recall is None else (*steps, recall))
