"""Bringing back, for a turn, the older messages that its newest words ask for."""

from __future__ import annotations

from dataclasses import dataclass

from agent_context.compression.strategy import CompressionPlan, PlanningView, Strategy
from agent_context.errors import InvalidOptions

__all__ = ["Recall", "find_recall"]


@dataclass(frozen=True, slots=True)
class Recall(Strategy):
    """With each turn, send the messages that compressions took away and its newest words ask for.

    They are found by their words, with no model, and go out as one message behind the stored ones
    and in front of what the turn says: in order, marked as earlier, and never stored, so what is
    stored stays a prefix. A call comes with its results. It removes nothing by itself: it stands in
    a `Pipeline` beside strategies that do. Each `events.Recalled` says what was sent.

    What the window holds already is not looked for: a turn whose words match what the model sees
    better than anything older sends nothing again.

    `Send(history=…)` recalls nothing: who gives a history has chosen what is sent.
    """

    share: float = 0.65
    """How much of the window (above 0, below 1) what is recalled may take. If more of the history
    than the rest is in the way, it is compressed."""
    most: int = 3_000
    """Tokens that it may take in a window of any size."""
    floor: float = 0.05
    """What a message must score at least, as a share (0 to 1) of what one would that says every
    word of the question, and often. 0 fills all there is room for, whatever the window holds
    already; 0.3 costs little."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InvalidOptions(f"Recall: share is {self.share}, must be between 0 and 1")
        if self.most < 1:
            raise InvalidOptions(f"Recall: most is {self.most}, must be at least 1")
        if not 0 <= self.floor <= 1:
            raise InvalidOptions(f"Recall: floor is {self.floor}, must be from 0 to 1")

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """Nothing: it takes nothing away."""
        del view
        return None

    def tokens_within(self, window: int) -> int:
        """What may be recalled in a window of so many tokens; 0 if that isn't known."""
        return min(int(window * self.share), self.most) if window else self.most


def find_recall(strategy: Strategy) -> Recall | None:
    """The `Recall` among the steps of a strategy, the first if there are several."""
    return next((step for step in strategy.steps if isinstance(step, Recall)), None)
