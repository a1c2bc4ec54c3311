"""Answers of a type."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from agent_context import FinishReason
from agent_context.agent import AgentUpdate
from agent_context.errors import InvalidOutput
from agent_context.providers import FileHistoryProvider
from tests.agent.conftest import Gives, agent_of, calls, requests, sent, texts


class City(BaseModel):
    name: str
    people: int


ROME = '{"name": "Rome", "people": 3}'


async def test_an_answer_becomes_a_value_of_its_type() -> None:
    agent = agent_of([ROME])

    response = await agent.run("Which city?", output_type=City)

    assert response.value == City(name="Rome", people=3)
    assert response.text == ROME


async def test_the_model_is_asked_by_its_vendors_best_means() -> None:
    agent = agent_of([ROME])

    await agent.run("Which city?", output_type=City)

    [request] = requests(agent)
    wanted = request.options.response_format
    assert wanted is not None
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["name"] == "City"


async def test_an_answer_that_is_none_may_be_mended_once() -> None:
    agent = agent_of(['{"name": "Rome"}', ROME])
    session = agent.create_session()

    response = await agent.run("Which city?", output_type=City, session=session)

    assert response.value == City(name="Rome", people=3)
    assert "people" in sent(agent)[-1]
    assert len(await session.get_messages()) == 4
    assert response.usage.output_tokens


async def test_an_answer_is_mended_with_a_history_elsewhere_too(tmp_path: Path) -> None:
    provider = FileHistoryProvider(tmp_path)
    agent = agent_of(["hi", "no", ROME], context_providers=[provider])
    session = agent.create_session("s")
    await agent.run("hello", session=session)

    response = await agent.run("Which city?", output_type=City, session=session)

    assert isinstance(response.value, City)
    *said, complaint = sent(agent)
    assert said == ["user: hello", "assistant: hi", "user: Which city?", "assistant: no"]
    assert complaint.startswith("user: The answer is not what was asked for")


async def test_an_answer_that_stays_wrong_is_an_error_that_providers_are_told() -> None:
    provider = Gives("p")
    agent = agent_of(["no", "still no"], context_providers=[provider])

    with pytest.raises(InvalidOutput):
        await agent.run("Which city?", output_type=City, wait_for_persistence=True)

    assert isinstance(provider.invoked[0][4], InvalidOutput)


async def test_tools_come_first_and_the_last_answer_counts() -> None:
    def look() -> str:
        """Look around."""
        return "a city"

    agent = agent_of([calls("look"), ROME], tools=[look])

    response = await agent.run("Which city?", output_type=City)

    assert isinstance(response.value, City)
    assert texts(response.messages) == ["look", "a city", ROME]


async def test_a_streamed_answer_has_a_value_at_its_end() -> None:
    agent = agent_of(["no", ROME])
    stream = agent.run("Which city?", output_type=City, stream=True)

    updates: list[AgentUpdate] = [update async for update in stream]

    assert stream.response.value == City(name="Rome", people=3)
    assert [u.finish_reason for u in updates if u.finish_reason] == [FinishReason.STOP]


@pytest.mark.parametrize("kind", [int, list[int], bool])
async def test_the_type_need_not_be_a_model(kind: type) -> None:
    said = {int: "7", list[int]: "[7]", bool: "true"}[kind]
    agent = agent_of([f'{{"value": {said}}}'])

    response = await agent.run("How many?", output_type=kind)

    assert response.value in (7, [7], True)
