"""What people write who come from other libraries: it works, or says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from agent_context import Agent, tool
from agent_context.errors import InvalidOptions, UsageError
from agent_context_backends.scripted import ScriptedBackend
from tests.agent.conftest import agent_of, calls, requests, texts


class City(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("default_options", "options=SendOptions"),
        ("system_prompt", "instructions"),
        ("chat_client", "client"),
        ("response_format", "output_type"),
        ("output_guardrails", "middleware"),
    ],
)
def test_an_argument_of_another_library_says_what_it_is_called_here(
    name: str, instead: str
) -> None:
    foreign: dict[str, Any] = {name: None}

    with pytest.raises(UsageError, match=rf"{name}: it is called otherwise here: .*{instead}"):
        Agent(ScriptedBackend(), **foreign)


async def test_so_does_one_of_a_run_and_of_a_tool() -> None:
    foreign: dict[str, Any] = {"response_format": City}
    with pytest.raises(UsageError, match="output_type"):
        await agent_of().run("hi", **foreign)
    with pytest.raises(UsageError, match=r"approval_mode: .*approval='require'"):
        tool(approval_mode="always_require")  # type: ignore[call-overload]


async def test_options_may_be_a_dict() -> None:
    agent = agent_of(["a", "b"], options={"temperature": 0.5})

    await agent.run("hi", options={"max_tokens": 10})

    sent = requests(agent)[0].options
    assert (sent.temperature, sent.max_tokens) == (0.5, 10)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"response_format": "City", "tempo": 1}, "there is no 'tempo'; what a vendor alone knows"),
        ({"thread": 1}, "there is no 'thread': write session"),
    ],
)
async def test_an_option_that_there_is_not_says_so(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptions, match=words):
        await agent_of().run("hi", options=options)


async def test_one_tool_needs_no_list_and_a_run_may_say_nothing() -> None:
    async def look() -> str:
        return "blue"

    agent = agent_of([calls("look"), "done", "more"], tools=look)
    session = agent.create_session()

    assert texts((await agent.run("go", session=session)).messages) == ["look", "blue", "done"]
    assert (await agent.run(None, session=session)).text == "more"


async def test_a_response_can_be_written_as_json() -> None:
    response = await agent_of(['{"name": "Oslo"}']).run("Where?", output_type=City)

    written = response.to_dict()

    assert (written["text"], written["value"]) == ('{"name": "Oslo"}', {"name": "Oslo"})
    assert written["messages"][0]["role"] == "assistant"
    assert written["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("name", "instead"), [("usage_details", "usage"), ("user_input_requests", "pending")]
)
async def test_a_responses_attribute_says_what_it_is_called_here(name: str, instead: str) -> None:
    response = await agent_of(["hi"]).run("hi")

    with pytest.raises(AttributeError, match=rf"{name!r}: it is called {instead} here"):
        getattr(response, name)
    with pytest.raises(AttributeError, match=r"has no 'nothing'$"):
        _ = response.nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
