"""What a skill told the model outlives every compression while it is in use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import (
    AgentContext,
    Compress,
    Extend,
    Incremental,
    Message,
    Send,
    SlidingWindow,
    Summarize,
    TokenBudget,
    ToolCall,
)
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message, with_id
from agent_context._context.tool_call_groups import find_open_calls
from agent_context._context.zones import Zones
from agent_context.compression import CompressionPlan, EvictToolResults, PlanningView, Strategy, pin
from agent_context.compression.pinning import pinned_indexes
from agent_context.protocol import Compressed
from agent_context.wire.dialect import Dialect
from agent_context.wire.rendering import render
from agent_context_backends.scripted import ScriptedBackend
from tests.compression.test_strategies import loop
from tests.histories import DIALECTS, ITEM_DIALECTS, histories
from tests.support.examples import examples

STRATEGIES: list[Strategy] = [
    Summarize(keep=2),
    SlidingWindow(1),
    TokenBudget(1),
    EvictToolResults(0),
]


def loaded(skill: str, number: int = 0, *, text: str = "Do it well. " * 50) -> list[Message]:
    """A question, the loading of a skill, an answer."""
    call = ToolCall(id=f"load-{skill}-{number}", name="load_skill")
    return [
        Message.user("please"),
        Message.assistant(tool_calls=[call]),
        pin(Message.tool(call.id, text), "skill", subject=skill),
        Message.assistant("loaded"),
    ]


def view(messages: list[Message], *, budget: int = 10_000) -> PlanningView:
    records = PersistentVector.of(map(from_message, messages))
    return PlanningView(Zones(incremental=records), lambda record: len(record.body), budget)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
async def test_no_strategy_takes_a_skill_in_use_away(strategy: Strategy) -> None:
    ctx = AgentContext.start(ScriptedBackend(["They found things."]))
    messages = [*loop(1), *loaded("review"), *loop(2), *loop(3)]
    ctx.ask(Extend(messages))

    report = await ctx.aask(Compress(strategy))

    assert report.changed
    left = ctx.ask(Incremental())
    assert messages[6] in left
    assert messages[5] in left
    assert messages[0].id in report.removed_ids or isinstance(strategy, EvictToolResults)


async def test_what_stays_comes_behind_the_summary_and_goes_out() -> None:
    backend = ScriptedBackend(["They found things.", "ok", "They found more.", "fine"])
    ctx = AgentContext.start(backend)
    messages = [*loop(1), *loaded("review"), *loop(2), *loop(3)]
    ctx.ask(Extend(messages))

    for keep in (4, 2):
        await ctx.aask(Compress(Summarize(keep=keep)))
        await ctx.aask(Send(messages=[Message.user("go on")]))

    assert len(ctx.ask(Compressed())) == 1
    assert list(ctx.ask(Incremental())[:2]) == messages[5:7]


@pytest.mark.parametrize("strategy", [SlidingWindow(1), TokenBudget(1)])
async def test_a_compression_with_nothing_else_to_take_does_nothing(strategy: Strategy) -> None:
    ctx = AgentContext.start(ScriptedBackend())
    ctx.ask(Extend([*loaded("review"), *loop(1)]))
    first = await ctx.aask(Compress(strategy))

    again = await ctx.aask(Compress(strategy))

    assert first.changed
    assert not again.changed


async def test_a_plan_that_would_take_only_what_stays_changes_nothing() -> None:
    class CutTwo(Strategy):
        def plan(self, view: PlanningView) -> CompressionPlan:
            return CompressionPlan(cut=2)

    ctx = AgentContext.start(ScriptedBackend())
    ctx.ask(Extend([*loaded("review")[1:3], *loop(1)]))

    report = await ctx.aask(Compress(CutTwo()))

    assert not report.changed


def test_a_later_result_about_the_same_supersedes_an_earlier_one() -> None:
    seen = view([*loaded("review"), *loaded("deploy"), *loaded("review", 1)])

    assert seen.pinned_indexes() == {5, 6, 9, 10}


def test_all_that_is_protected_takes_at_most_half_of_the_room() -> None:
    messages = [*loaded("old"), *loaded("huge", text="x" * 5_000), *loaded("new")]

    assert view(messages, budget=4_000).pinned_indexes() == {1, 2, 9, 10}
    assert view(messages, budget=1_000).pinned_indexes() == frozenset()


def test_a_budget_is_kept_with_what_stays_counted() -> None:
    seen = view([*loaded("review"), *loop(1), *loop(2), *loop(3)])
    total = seen.tokens(seen.history)

    plan = TokenBudget(total - 100).plan(seen)

    assert plan is not None
    gone, _ = seen.split(plan.cut)
    assert seen.tokens(gone) >= 100


def test_a_result_beside_the_skill_may_be_shortened() -> None:
    calls = [ToolCall(id="a", name="load_skill"), ToolCall(id="b", name="find")]
    skill = pin(Message.tool("a", "Do it. " * 100), "skill", subject="review")
    messages = [Message.assistant(tool_calls=calls), skill, Message.tool("b", "found " * 100)]

    plan = EvictToolResults(0).plan(view([*messages, *loop(1)]))

    assert plan is not None
    assert sorted(plan.replaced) == [5]


def test_the_mark_outlives_what_happens_to_a_message_at_rest() -> None:
    message = pin(Message.tool("a", "Do it."), "skill", subject="review")
    record = from_message(message)

    assert record.pin == ("skill", "review")
    assert with_id(record, "other").pin == ("skill", "review")
    assert from_message(record.message).pin == ("skill", "review")


@pytest.mark.parametrize("dialect", [*DIALECTS, *ITEM_DIALECTS], ids=lambda each: each.name)
def test_the_mark_is_never_sent(dialect: Dialect) -> None:
    marked = from_message(pin(Message.tool("a", "Do it."), "skill", subject="review"))

    assert render(marked, dialect) == render(from_message(Message.tool("a", "Do it.")), dialect)


@pytest.mark.parametrize(
    "message",
    [
        Message.tool("a", '"protected":"skill"'),
        Message.user('{"protected":"skill"}'),
        Message.tool("a", "x").model_copy(update={"note": {"protected": "skill"}}),
        Message.tool("a", "x").model_copy(update={"protected": True}),
        Message.tool("a", "x").model_copy(update={"protected": ""}),
    ],
)
def test_words_are_no_mark(message: Message) -> None:
    assert from_message(message).pin is None


@st.composite
def marked_histories(draw: st.DrawFn) -> list[StoredMessage]:
    """Histories some of whose tool results are marked."""
    records: list[StoredMessage] = []
    for record in draw(histories):
        subject = draw(st.sampled_from(["", "one", "two"]))
        if record.role == "tool" and subject:
            records.append(from_message(pin(record.message, "skill", subject=subject)))
        else:
            records.append(record)
    return records


@examples(3)
@given(marked_histories(), st.sampled_from(STRATEGIES), st.integers(1, 6_000))
def test_what_stays_opens_no_call_and_leaves_nobody_alone(
    records: list[StoredMessage], strategy: Strategy, budget: int
) -> None:
    seen = PlanningView(
        Zones(incremental=PersistentVector.of(records)), lambda record: len(record.body), budget
    )
    plan = strategy.plan(seen)
    cut = plan.cut if plan else 0

    gone, stays = seen.split(cut)

    kept = PersistentVector.of((*stays, *records[cut:]))
    assert find_open_calls(kept) == find_open_calls(PersistentVector.of(records))
    assert bool(gone) == bool(cut)
    calls = {call for record in stays if record.role == "assistant" for call in record.call_ids}
    results = {call for record in stays if record.role == "tool" for call in record.call_ids}
    assert calls == results
    assert pinned_indexes(kept, seen.count, budget // 2) >= frozenset(range(len(stays)))
