"""A plan cuts at group borders, keeps the newest group, and costs no model call."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import Message, SlidingWindow, Summarize, TokenBudget
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zones
from agent_context.compression import (
    EvictToolResults,
    Pipeline,
    PlanningView,
    Strategy,
    default_strategy,
)
from agent_context.errors import InvalidOptions
from agent_context.messages import Role, ToolCall
from tests.histories import histories
from tests.support.examples import examples


def user(text: str) -> Message:
    return Message.user(text)


def loop(number: int, *, result: str = "found " * 100) -> list[Message]:
    """A question, a tool call, its result, an answer."""
    call = ToolCall(id=f"c{number}", name="find", arguments='{"what": "it"}')
    return [
        user(f"question {number}"),
        Message.assistant(tool_calls=[call]),
        Message.tool(call.id, f"{number}: {result}"),
        Message.assistant(f"answer {number}"),
    ]


def view(messages: list[Message], *, budget: int = 1_000, system: str = "s") -> PlanningView:
    zones = Zones(
        immutable=PersistentVector.of([from_message(Message.system(system))]),
        incremental=PersistentVector.of(map(from_message, messages)),
    )
    return PlanningView(zones, lambda record: len(record.body), budget)


def test_a_sliding_window_keeps_whole_turns() -> None:
    plan = SlidingWindow(2).plan(view([*loop(1), *loop(2), *loop(3)]))

    assert plan is not None
    assert plan.cut == 4


def test_a_window_that_holds_everything_plans_nothing() -> None:
    assert SlidingWindow(3).plan(view([*loop(1), *loop(2), *loop(3)])) is None
    assert TokenBudget(100_000).plan(view(loop(1))) is None
    assert Summarize(keep=4).plan(view(loop(1))) is None
    assert EvictToolResults(1).plan(view(loop(1))) is None
    assert default_strategy().plan(view([])) is None


def test_a_token_budget_keeps_as_much_as_fits() -> None:
    seen = view([user("x" * 100) for _ in range(20)])
    size = seen.count(seen.history[0])
    fixed = seen.tokens(seen.zones.immutable)

    plan = TokenBudget(fixed + 5 * size).plan(seen)

    assert plan is not None
    assert plan.cut == 15


@pytest.mark.behaviour(99)
def test_the_newest_group_stays_even_if_it_is_over_the_budget() -> None:
    messages = [*loop(1), *loop(2)[:3]]

    plan = TokenBudget(1).plan(view(messages))

    assert plan is not None
    assert plan.cut == 5


def test_summarize_rounds_to_whole_groups() -> None:
    messages = [*loop(1), *loop(2)]

    cuts = {
        keep: plan.cut for keep in range(8) if (plan := Summarize(keep=keep).plan(view(messages)))
    }

    assert cuts == {0: 7, 1: 7, 2: 5, 3: 5, 4: 4, 5: 3, 6: 1, 7: 1}


def test_an_open_call_is_pinned_and_a_dead_one_is_not() -> None:
    open_call = [*loop(1)[:2], Message.assistant("still looking"), Message.assistant("wait")]
    dead_call = [*open_call, user("never mind"), Message.assistant("ok")]

    pinned = TokenBudget(1).plan(view(open_call))
    freed = TokenBudget(1).plan(view(dead_call))

    assert pinned is not None
    assert pinned.cut == 1
    assert freed is not None
    assert freed.cut == 5


def test_results_without_a_call_do_not_forbid_every_cut() -> None:
    messages = [*loop(1), Message.tool("lost", "?"), *loop(2)]

    plan = TokenBudget(1).plan(view(messages))

    assert plan is not None
    assert plan.cut == 8


def test_old_tool_results_become_stubs_that_name_their_message() -> None:
    messages = [*loop(1), *loop(2), *loop(3, result="short")]

    plan = EvictToolResults(keep_last=1).plan(view(messages))

    assert plan is not None
    assert sorted(plan.replaced) == [2, 6]
    stub = plan.replaced[2].message
    assert (stub.id, stub.tool_call_id, stub.role) == (messages[2].id, "c1", Role.TOOL)
    assert messages[2].id in stub.text
    assert len(stub.text) < 100


def test_a_stub_is_not_shortened_again() -> None:
    first = EvictToolResults(keep_last=0).plan(view(loop(1)))
    assert first is not None
    stubbed = [first.replaced[2].message if i == 2 else m for i, m in enumerate(loop(1))]

    assert EvictToolResults(keep_last=0).plan(view(stubbed)) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: SlidingWindow(0),
        lambda: TokenBudget(0),
        lambda: EvictToolResults(-1),
        lambda: Summarize(keep=-1),
        lambda: Summarize(keep=1, target=0),
        lambda: Pipeline([]),
    ],
)
def test_a_strategy_that_makes_no_sense_cannot_be_made(make: object) -> None:
    with pytest.raises(InvalidOptions):
        make()  # type: ignore[operator]


STRATEGIES: list[Strategy] = [
    Summarize(keep=0),
    Summarize(keep=3),
    SlidingWindow(1),
    SlidingWindow(3),
    TokenBudget(200),
    TokenBudget(),
    EvictToolResults(0),
    EvictToolResults(1),
]


@pytest.mark.behaviour(99)
@examples(3)
@given(histories, st.sampled_from(STRATEGIES), st.integers(1, 3_000))
def test_no_plan_ever_splits_a_group(
    records: list[StoredMessage], strategy: Strategy, budget: int
) -> None:
    zones = Zones(incremental=PersistentVector.of(records))

    plan = strategy.plan(PlanningView(zones, lambda record: len(record.body), budget))

    cut = plan.cut if plan else 0
    owners = _owners(records)
    assert all((owner < cut) == (index < cut) for index, owner in owners.items())
    assert cut < max(len(records), 1)


def _owners(records: list[StoredMessage]) -> dict[int, int]:
    """The place of each result's call: the nearest one before it with its id."""
    owners: dict[int, int] = {}
    latest: dict[str, int] = {}
    for index, record in enumerate(records):
        if record.role is Role.TOOL and record.call_ids[0] in latest:
            owners[index] = latest[record.call_ids[0]]
        elif record.role is Role.ASSISTANT:
            latest |= dict.fromkeys(record.call_ids, index)
    return owners


def test_with_more_behind_it_even_the_newest_may_go() -> None:
    seen = replace(view(loop(1)[:3], budget=100), allow_newest=True)

    plans = [strategy.plan(seen) for strategy in (TokenBudget(), Summarize(0), EvictToolResults(3))]

    assert [plan.cut for plan in plans if plan] == [3, 3, 0]
    assert [list(plan.replaced) for plan in plans if plan] == [[], [], [2]]
