"""What turns used is stored with them, and added up over all conversations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from agent_context import Completion, FinishReason, Message, Send, ToolCall, Usage, events
from agent_context.errors import InvalidOptions
from agent_context.models import CachePolicy, ModelFacts
from agent_context.stores.store import Store
from agent_context.tools.loop import ToolRound
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Seen
from tests.host.conftest import Start

FACTS = ModelFacts(
    context_window=8_000,
    max_output=100,
    cache=CachePolicy(ratio=0.1, price=2.0),
    output_price=10.0,
)


PLAIN = Usage(input_tokens=1_000, cached_tokens=500, output_tokens=100)


def answer(model: str = "m", *calls: ToolCall) -> Completion:
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    message = Message.assistant("Yes.", tool_calls=list(calls))
    return Completion(message=message, finish_reason=reason, model=model, usage=PLAIN)


COST = (500 + 500 * 0.1) * 2 / 1e6 + 100 * 10 / 1e6


class Lamp:
    """Answers a call."""

    async def answer(self, completion: Completion, done: object) -> ToolRound:
        del completion, done
        return ToolRound((Message.tool("c", "On."),))


def test_a_turn_tells_what_it_used_and_cost(store: Store, start: Start) -> None:
    host = start(store, ScriptedBackend([answer()], facts=FACTS))

    turn = host.get("ann").say("Is it?").turn

    assert turn is not None
    assert (turn.calls, turn.usage) == (1, PLAIN)
    assert turn.cost is not None
    assert turn.cost.amount == pytest.approx(COST)


def test_the_rounds_of_a_turn_are_part_of_it(store: Store, start: Start) -> None:
    calls = answer("m", ToolCall(id="c", name="lamp", arguments="{}"))
    host = start(store, ScriptedBackend([calls, answer()], facts=FACTS))

    completion = host.get("ann").ask(Send("Is it?", loop=Lamp()))

    assert completion.usage.input_tokens == 1_000
    assert completion.turn is not None
    assert (completion.turn.calls, completion.turn.usage.input_tokens) == (2, 2_000)


def test_the_event_of_an_answer_tells_it_too(store: Store, start: Start, seen: Seen) -> None:
    host = start(store, ScriptedBackend([answer()], facts=FACTS), on_change=seen)

    completion = host.get("ann").say("Is it?")

    asked, answered = seen.wait_for(events.Appended, 2)
    assert asked.turn is None
    assert answered.turn == completion.turn


def test_a_repeated_request_gets_the_same_figures(store: Store, start: Start) -> None:
    host = start(store, ScriptedBackend([answer()], facts=FACTS))

    first, again = (host.get("ann").ask(Send("Is it?", key="k")) for _ in range(2))

    assert again.turn == first.turn


@pytest.mark.parametrize(
    ("by", "turns"), [("model", {"m": 2, "n": 1}), ("conversation", {"ann": 2, "bob": 1})]
)
def test_usage_is_added_up_over_all_conversations(
    store: Store, start: Start, by: str, turns: dict[str, int]
) -> None:
    model = ScriptedBackend([answer(), answer(), answer("n")], facts=FACTS)
    host = start(store, model)
    for name in ("ann", "ann", "bob"):
        host.get(name).say("Is it?")

    totals = host.usage(by=by)  # type: ignore[arg-type]

    assert {name: total.turns for name, total in totals.items()} == turns
    first = next(iter(totals.values()))
    assert (first.calls, first.usage.input_tokens, first.unpriced) == (2, 2_000, 0)
    assert first.costs["USD"] == pytest.approx(2 * COST)


def test_usage_since_a_time_leaves_out_what_was_before(store: Store, start: Start) -> None:
    host = start(store, ScriptedBackend([answer()], facts=FACTS))
    host.get("ann").say("Is it?")
    now = datetime.now(UTC)

    assert list(host.usage(now - timedelta(minutes=1), "day")) == [f"{now:%Y-%m-%d}"]
    assert host.usage(now + timedelta(minutes=1)) == {}


def test_a_turn_whose_price_nobody_knows_is_counted_as_such(store: Store, start: Start) -> None:
    host = start(store, ScriptedBackend([answer("never-heard-of")]))
    host.get("ann").say("Is it?")

    total = host.usage()["never-heard-of"]

    assert (total.turns, total.unpriced, total.costs) == (1, 1, {})


def test_what_makes_no_sense_is_refused(store: Store, start: Start) -> None:
    host = start(store)

    with pytest.raises(InvalidOptions, match="by: one of model, conversation, day, not 'week'"):
        host.usage(by="week")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match="since: a time with its zone"):
        host.usage(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
