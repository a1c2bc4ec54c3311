"""What tools and instructions know of the run that they are part of."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from agent_context import Completion, Message, Usage, tool
from agent_context.agent import RunContext
from agent_context.errors import InvalidOptions
from tests.agent.conftest import agent_of, calls, requests, sent, texts


@dataclass
class Database:
    name: str


@tool
async def query(run: RunContext[Database]) -> str:
    """Ask the database."""
    return f"rows of {run.deps.name}"


async def test_a_tool_gets_what_the_run_was_given() -> None:
    agent = agent_of([calls("query"), "done"], tools=[query])

    response = await agent.run("go", deps=Database("orders"))

    assert texts(response.messages)[1] == "rows of orders"
    assert query.parameters.get("properties") == {}


@pytest.mark.parametrize("deps", [None, "orders"])
async def test_a_tool_that_wants_something_else_is_refused_before_anything_is_sent(
    deps: object,
) -> None:
    agent = agent_of([calls("query"), "never"], tools=[query])

    with pytest.raises(InvalidOptions, match=r"query takes a RunContext\[Database\], and deps is"):
        await agent.run("go", deps=deps)

    assert requests(agent) == []


async def test_a_tool_sees_session_words_and_costs_of_the_run() -> None:
    seen: list[object] = []

    async def look(run: RunContext[None]) -> str:
        assert run.session is not None
        seen.extend([run.session.session_id, run.messages[0].text, run.usage.input_tokens])
        return "nothing"

    first = Completion(message=calls("look"), usage=Usage(input_tokens=7))
    agent = agent_of([first, "done"], tools=[look])
    await agent.run("go", session=agent.create_session("s"))

    assert seen == ["s", "go", 7]


async def test_instructions_may_be_made_for_each_run() -> None:
    async def instruct(run: RunContext[Database]) -> str:
        return f"You know {run.deps.name}. You were asked: {run.messages[0].text}"

    agent = agent_of(["done"], instructions=instruct)
    await agent.run("Who?", deps=Database("orders"))

    assert sent(agent) == ["system: You know orders. You were asked: Who?", "user: Who?"]


async def test_instructions_of_a_run_stand_in_the_place_of_those_that_are_made() -> None:
    agent = agent_of(["done"], instructions=lambda run: "made")
    await agent.run(Message.user("Who?"), instructions="given")

    assert sent(agent) == ["system: given", "user: Who?"]
