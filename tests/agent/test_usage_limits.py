"""What a run may use, and that it ends before it uses more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent_context import Completion, Message, Usage
from agent_context.agent import UsageLimits
from agent_context.errors import InvalidOptions, UsageLimitExceeded
from agent_context.models import CachePolicy, ModelFacts
from agent_context_backends.scripted import ScriptedBackend
from tests.agent.conftest import agent_of, calls, requests, texts


async def look() -> str:
    return "nothing"


def costs(message: Message | str, *, sent: int, answered: int) -> Completion:
    said = Message.assistant(message) if isinstance(message, str) else message
    return Completion(message=said, usage=Usage(input_tokens=sent, output_tokens=answered))


async def test_a_run_ends_before_it_asks_once_too_often() -> None:
    agent = agent_of([calls("look"), calls("look"), "never"], tools=[look])
    session = agent.create_session()

    with pytest.raises(UsageLimitExceeded, match="requests: 3 would be used, 2 are allowed"):
        await agent.run("go", session=session, usage_limits=UsageLimits(requests=2))

    assert len(requests(agent)) == 2
    assert texts(await session.get_messages()) == ["go", "look", "nothing", "look", "nothing"]


async def test_a_request_that_is_too_much_is_not_sent() -> None:
    agent = agent_of(["never"])

    with pytest.raises(UsageLimitExceeded, match=r"input_tokens: .* 100 are allowed"):
        await agent.run("word " * 500, usage_limits=UsageLimits(input_tokens=100))

    assert requests(agent) == []


async def test_what_earlier_calls_took_counts() -> None:
    agent = agent_of([costs(calls("look"), sent=90, answered=5), "never"], tools=[look])

    with pytest.raises(UsageLimitExceeded, match="total_tokens"):
        await agent.run("go", usage_limits=UsageLimits(total_tokens=100))

    assert len(requests(agent)) == 1


async def test_an_answer_may_take_what_is_left() -> None:
    backend = ScriptedBackend([costs(calls("look"), sent=10, answered=30), "done"])
    agent = agent_of(backend, tools=[look])

    await agent.run("go", usage_limits=UsageLimits(output_tokens=100))

    assert [request.options.max_tokens for request in backend.requests] == [100, 70]


async def test_limits_that_are_far_away_change_no_request() -> None:
    backend = ScriptedBackend(["done", "done"])
    limits = UsageLimits(total_tokens=10_000_000, output_tokens=5_000_000)

    await agent_of(backend).run("go", usage_limits=limits)
    await agent_of(backend).run("go", usage_limits=limits, options={"max_tokens": 50})

    assert [request.options.max_tokens for request in backend.requests] == [None, 50]


async def test_a_run_ends_before_a_tool_is_called_once_too_often() -> None:
    agent = agent_of([calls("look"), calls("look", "look"), "never"], tools=[look])

    with pytest.raises(UsageLimitExceeded, match="tool_calls: 3 would be used, 2 are allowed"):
        await agent.run("go", usage_limits=UsageLimits(tool_calls=2))


async def test_a_tool_that_was_called_often_enough_says_so_and_the_run_goes_on() -> None:
    agent = agent_of([calls("look"), calls("look"), "done"], tools=[look])
    limits = UsageLimits(calls_per_tool={"look": 1})

    response = await agent.run("go", usage_limits=limits)

    assert response.text == "done"
    assert texts(response.messages)[3] == "look may be called 1 times, and was: go on without it."


async def test_an_agents_limits_hold_for_runs_that_have_none() -> None:
    agent = agent_of(["one", "two"], usage_limits=UsageLimits(requests=0))

    with pytest.raises(UsageLimitExceeded):
        await agent.run("go")
    assert (await agent.run("go", usage_limits=UsageLimits())).text == "one"


@pytest.mark.parametrize(
    "limits", [{"requests": -1}, {"cost": -0.1}, {"tool_calls": True}, {"input_tokens": "1"}]
)
def test_what_is_no_count_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions, match=next(iter(limits))):
        UsageLimits(**limits)


class Priced(ScriptedBackend):
    """A dollar for a million tokens in, ten for a million out."""

    def model_facts(self, model: str | None) -> ModelFacts:
        cache = CachePolicy(ratio=0.1, price=1.0)
        facts = super().model_facts(model)
        return replace(facts, cache=cache, output_price=10.0)


async def test_a_run_ends_before_it_costs_too_much() -> None:
    first = costs(calls("look"), sent=50_000, answered=1_000)
    agent = agent_of(Priced([first, "never"]), tools=[look])

    with pytest.raises(
        UsageLimitExceeded, match=r"cost: 0\.060\d would be spent, 0\.06 is allowed"
    ):
        await agent.run("go", usage_limits=UsageLimits(cost=0.06))

    assert len(requests(agent)) == 1


async def test_an_answer_may_cost_what_is_left() -> None:
    backend = Priced(["done"])

    await agent_of(backend).run("go", usage_limits=UsageLimits(cost=0.01))

    assert 0 < (backend.requests[0].options.max_tokens or 0) <= 1000


async def test_a_model_whose_price_nobody_knows_is_not_asked() -> None:
    agent = agent_of(["never"])

    with pytest.raises(UsageLimitExceeded, match="what scripted costs is not known"):
        await agent.run("go", usage_limits=UsageLimits(cost=1.0))

    assert requests(agent) == []
