"""Strategies that need no model: they drop or shorten what is old."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.tool_call_groups import user_turn_starts
from agent_context.compression.strategy import CompressionPlan, PlanningView, Strategy
from agent_context.errors import InvalidOptions
from agent_context.messages import Message, Role

__all__ = ["EvictToolResults", "SlidingWindow", "TokenBudget"]

_SHORTEST_WORTH_A_STUB = 400
"""Characters of a stored result below which a stub would save nothing."""


@dataclass(frozen=True, slots=True)
class SlidingWindow(Strategy):
    """Keep the newest `turns` turns; a turn begins with what the user says."""

    turns: int

    def __post_init__(self) -> None:
        _at_least_one("turns", self.turns)

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """Cut before the oldest turn that stays, or at the nearest legal place before it."""
        start = next(islice(user_turn_starts(view.history), self.turns - 1, None), 0)
        cut = view.newest_cut(keep=len(view.history) - start)
        return CompressionPlan(cut=cut) if cut else None


@dataclass(frozen=True, slots=True)
class TokenBudget(Strategy):
    """Keep as many of the newest messages as fit: the three zones take at most `budget` tokens.

    The newest group stays even if it alone is over the budget. None takes the view's own budget.
    """

    budget: int | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            _at_least_one("budget", self.budget)

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """Cut at the oldest legal place that leaves what fits."""
        budget = view.budget if self.budget is None else self.budget
        zones = view.zones
        fixed = view.tokens(zones.immutable) + view.tokens(zones.compressed)
        cut = view.oldest_cut_within(budget - fixed)
        return CompressionPlan(cut=cut) if cut else None


@dataclass(frozen=True, slots=True)
class EvictToolResults(Strategy):
    """Shorten all tool results but the newest `keep_last` to stubs that name their message.

    Protected ones stay as they are, and don't count. Where nothing else makes room for what comes
    next, the newest are shortened too.

    The history that the conversation keeps is not touched, only what is sent.
    """

    keep_last: int = 3

    def __post_init__(self) -> None:
        if self.keep_last < 0:
            raise InvalidOptions(f"EvictToolResults: keep_last is {self.keep_last}, must be >= 0")

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """Replace every older result that a stub would make smaller."""
        protected = view.pinned_indexes()
        results = [
            i
            for i, record in enumerate(view.history)
            if record.role is Role.TOOL and i not in protected
        ]
        old = results if view.allow_newest else results[: len(results) - self.keep_last]
        stubs = {i: stub for i in old if (stub := _stub(view.history[i])) is not None}
        smaller = {
            i: stub for i, stub in stubs.items() if view.count(stub) < view.count(view.history[i])
        }
        return CompressionPlan(replaced=smaller) if smaller else None


def _stub(record: StoredMessage) -> StoredMessage | None:
    if len(record.body) < _SHORTEST_WORTH_A_STUB:
        return None
    message = record.message
    if message.extra.get("evicted"):
        return None
    text = f"[tool result of {len(message.text)} characters left out; message {message.id}]"
    stub = Message.tool(record.call_ids[0], text, name=message.name, interim=message.interim)
    return from_message(Message.model_validate({**dict(stub), "id": message.id, "evicted": True}))


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InvalidOptions(f"{name} is {value}, must be at least 1")
