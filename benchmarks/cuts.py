"""How long it takes to plan the cut of a long tool history to 8,000 tokens.

All messages have been counted before, as they have in a conversation that has sent. Planning is
what is timed; nothing is cut. The peer looks up the count of every message once, as a
planner has to that begins at the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import from_message
from agent_context._context.tokens import TokenCountCache, count_message
from agent_context._context.zones import Zones
from agent_context.compression import PlanningView, TokenBudget
from agent_context.messages import Message
from agent_context.models import ModelFacts
from benchmarks.material import text, tool_loop, tool_turns
from benchmarks.report import Row, main, median

__all__ = ["rows"]

GOAL = 1e-3
BUDGET = 8_000
FACTS = ModelFacts(context_window=128_000, max_output=4_096)


def rows(scale: float) -> Iterator[Row]:
    yield _planned("2,000 turns with tools", tool_turns(10_000), scale)
    yield _planned("one tool loop, no user speaks", tool_loop(10_000), scale)


def _planned(name: str, messages: Iterable[Message], scale: float) -> Row:
    view = _view(messages)
    strategy = TokenBudget(BUDGET)
    plan = strategy.plan(view)
    assert plan is not None
    assert 0 < plan.cut < len(view.history)
    times = max(5, round(100 * scale))
    planning = median(lambda: strategy.plan(view), times=times)
    reading = median(lambda: view.tokens(view.history), times=times)
    return Row(
        what=f"cut of {len(view.zones):,} messages to {BUDGET:,} tokens: {name}",
        figure=f"{planning * 1e3:.2f} ms",
        floor=f"adding up all counts: {reading * 1e3:.2f} ms",
        ratio=f"{planning / reading:.2f}",
        goal="≤ 1 ms",
        met=planning <= GOAL,
    )


def _view(messages: Iterable[Message]) -> PlanningView:
    counts = TokenCountCache(lambda message: count_message(message, FACTS))
    zones = Zones(
        immutable=PersistentVector.of([from_message(Message.system(text()))]),
        incremental=PersistentVector.of(map(from_message, messages)),
    )
    counts.total(zones)
    return PlanningView(zones, counts.of, BUDGET)


if __name__ == "__main__":
    main(__doc__, rows)
