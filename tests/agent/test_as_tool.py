"""An agent that another one calls."""

from __future__ import annotations

import pytest

from agent_context import Agent, tool
from agent_context.agent import RunContext
from agent_context.errors import InvalidOptions
from agent_context_backends.scripted import ScriptedBackend
from tests.agent.conftest import agent_of, calls, sent, texts


def ask(words: str) -> str:
    return f'{{"request": "{words}"}}'


async def test_an_agent_answers_another_one() -> None:
    expert = agent_of(["Oslo."], name="geographer", description="Knows places.")
    agent = agent_of(
        [calls("geographer", arguments=ask("Capital of Norway?")), "It is Oslo."],
        tools=[expert.as_tool()],
    )

    response = await agent.run("Where?")

    assert texts(response.messages) == ["geographer", "Oslo.", "It is Oslo."]
    assert sent(expert) == ["user: Capital of Norway?"]


def test_its_tool_is_called_as_the_agent_is_unless_told_otherwise() -> None:
    expert = agent_of(name="geographer", description="Knows places.")

    assert (expert.as_tool().name, expert.as_tool().description) == ("geographer", "Knows places.")
    other = expert.as_tool(name="places", description="Ask about places.")
    assert (other.name, other.description) == ("places", "Ask about places.")


def test_an_agent_without_a_name_needs_one_to_be_a_tool() -> None:
    with pytest.raises(InvalidOptions, match=r"as_tool\(name=…\)"):
        agent_of().as_tool()


async def test_it_has_what_the_run_was_given() -> None:
    seen: list[object] = []

    @tool
    async def look(run: RunContext[str]) -> str:
        """Look."""
        seen.append(run.deps)
        return "nothing"

    expert = agent_of([calls("look"), "Oslo."], name="expert", tools=[look])
    script = ScriptedBackend([calls("expert", arguments=ask("Where?")), "Oslo."])
    await Agent(script, tools=expert.as_tool()).run("go", deps="a map")

    assert seen == ["a map"]


async def test_one_that_waits_for_approval_says_so() -> None:
    @tool(approval="require")
    async def delete() -> str:
        """Delete."""
        return "gone"

    expert = agent_of([calls("delete")], name="expert", tools=[delete])
    agent = agent_of(
        [calls("expert", arguments=ask("Delete it.")), "done"], tools=[expert.as_tool()]
    )

    told = texts((await agent.run("go")).messages)[1]
    assert told == "it can't go on: somebody must allow its calls of delete first"
