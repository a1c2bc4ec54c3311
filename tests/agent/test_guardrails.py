"""Checks of what goes into a run and of what comes out of it."""

from __future__ import annotations

import pytest

from agent_context import Completion
from agent_context.agent import RunRequest, input_guardrail, output_guardrail
from agent_context.errors import GuardrailTripped, InvalidOptions
from tests.agent.conftest import agent_of, calls, requests, texts


@input_guardrail
async def no_passwords(run: RunRequest) -> str | None:
    return "a password" if any("hunter2" in said.text for said in run.messages) else None


@output_guardrail
def polite(answer: Completion) -> str | None:
    return "not polite" if "fool" in answer.text else None


async def test_what_must_not_go_in_is_neither_sent_nor_stored() -> None:
    agent = agent_of(["done"], middleware=[no_passwords])
    session = agent.create_session()

    with pytest.raises(GuardrailTripped, match="no_passwords: a password"):
        await agent.run("It is hunter2.", session=session)

    assert requests(agent) == []
    assert await session.get_messages() == []
    assert (await agent.run("Hello.", session=session)).text == "done"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_must_not_come_out_is_not_stored(stream: bool) -> None:
    agent = agent_of(["You fool.", "Sir."], middleware=[polite])
    session = agent.create_session()

    async def run() -> object:
        if stream:
            return await agent.run("Hello.", session=session, stream=True).get_final_response()
        return await agent.run("Hello.", session=session)

    with pytest.raises(GuardrailTripped, match="polite: not polite"):
        await run()

    assert await session.get_messages() == []
    assert (await agent.run("Hello.", session=session)).text == "Sir."


async def test_only_the_last_answer_is_checked() -> None:
    async def fool() -> str:
        return "a fool's errand"

    agent = agent_of([calls("fool"), "done"], tools=[fool], middleware=[polite])

    assert texts((await agent.run("go")).messages) == ["fool", "a fool's errand", "done"]


async def test_a_check_gives_a_reason_or_nothing() -> None:
    @input_guardrail
    async def wrong(run: RunRequest) -> str | None:
        return True  # type: ignore[return-value]

    with pytest.raises(InvalidOptions, match="wrong: a guardrail gives a reason or None, not True"):
        await agent_of([], middleware=[wrong]).run("go")
