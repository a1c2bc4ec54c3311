"""Calls that somebody must decide on: one after the other, with one id, in other processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_context import Agent, AgentSession, Message, ToolCall
from agent_context.errors import InvalidOptions
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Store
from agent_context.tools import Always, FunctionTool, Toolbox, tool
from agent_context_backends.scripted import ScriptItem
from tests.agent.conftest import agent_of, calls, requests, texts


def careful(ran: list[str]) -> FunctionTool:
    @tool(approval="require")
    def delete(what: str = "it") -> str:
        """Delete something."""
        ran.append(what)
        return f"{what} is gone"

    return delete


def deletes(*pairs: tuple[str, str]) -> Message:
    made = [
        ToolCall(id=id_, name="delete", arguments=json.dumps({"what": what})) for id_, what in pairs
    ]
    return Message.assistant(tool_calls=made)


@pytest.mark.parametrize("store", [None, MemoryStore()])
async def test_decisions_come_one_after_the_other(store: Store | None) -> None:
    ran: list[str] = []
    script: list[ScriptItem] = [deletes(("a", "one"), ("b", "two"), ("c", "three")), "done"]
    agent = agent_of(script, tools=[careful(ran)], store=store)
    session = agent.create_session()

    first = await agent.run("go", session=session)
    second = await agent.run(session=session, approvals={"a": True})
    third = await agent.run(session=session, approvals={"b": "not that one"})
    unchanged = await agent.run(session=session)
    last = await agent.run(session=session, approvals={"c": True})

    waiting = [[call.id for call in r.pending] for r in (first, second, third, unchanged, last)]
    assert waiting == [["a", "b", "c"], ["b", "c"], ["c"], ["c"], []]
    assert ran == ["one", "three"]
    assert last.text == "done"
    assert "not that one" in last.messages[2].text


async def test_a_later_decision_on_a_call_is_the_one_that_counts() -> None:
    ran: list[str] = []
    script: list[ScriptItem] = [deletes(("a", "one"), ("b", "two")), "done"]
    agent = agent_of(script, tools=[careful(ran)])
    session = agent.create_session()

    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"a": True})
    await agent.run(session=session, approvals={"a": False, "b": True})

    assert ran == ["two"]


async def test_decisions_outlive_the_process() -> None:
    ran: list[str] = []
    agent = agent_of([deletes(("a", "one"), ("b", "two")), "done"], tools=[careful(ran)])
    session = agent.create_session()
    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"a": True})

    moved = AgentSession.from_dict(json.loads(json.dumps(await session.snapshot())))
    response = await agent.run(session=moved, approvals={"b": True})

    assert ran == ["one", "two"]
    assert response.text == "done"


async def test_decisions_on_calls_that_were_left_behind_are_forgotten() -> None:
    ran: list[str] = []
    one, other = deletes(("a", "one"), ("b", "two")), deletes(("a", "three"), ("b", "four"))
    agent = agent_of([one, "well", other, "done"], tools=[careful(ran)])
    session = agent.create_session()
    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"a": True})

    await agent.run("never mind", session=session)
    await agent.run("again", session=session)
    response = await agent.run(session=session, approvals={"b": True})

    assert [call.id for call in response.pending] == ["a"]
    assert ran == []


async def test_an_approval_of_one_of_two_calls_with_one_id_runs_one() -> None:
    ran: list[str] = []
    agent = agent_of([deletes(("a", "one"), ("a", "two")), "done"], tools=[careful(ran)])
    session = agent.create_session()

    first = await agent.run("go", session=session)
    second = await agent.run(session=session, approvals={"a": True})
    last = await agent.run(session=session, approvals={"a#2": False})

    assert [call.id for call in first.pending] == ["a", "a#2"]
    assert [call.id for call in second.pending] == ["a#2"]
    assert ran == ["one"]
    assert texts(last.messages)[1] == "one is gone"
    assert "not allowed" in texts(last.messages)[2]


@pytest.mark.parametrize("decision", [1, None, b"yes", {"approve": True}])
async def test_a_decision_is_yes_no_words_or_a_result(decision: Any) -> None:
    ran: list[str] = []
    agent = agent_of([deletes(("a", "one"))], tools=[careful(ran)])
    session = agent.create_session()
    await agent.run("go", session=session)

    with pytest.raises(InvalidOptions, match=r"approvals\['a'\]: True, False"):
        await agent.run(session=session, approvals={"a": decision})

    assert ran == []


@pytest.mark.parametrize(
    "arguments",
    ['"{\\"what\\": \\"all\\"}"', '{"what": "nothing", "what": "all"}', ' {"what" :\n"all"}'],
)
async def test_whoever_decides_reads_what_will_run(arguments: str) -> None:
    ran: list[str] = []
    judged: list[object] = []

    def approve(call: ToolCall) -> bool:
        judged.append(json.loads(call.arguments, object_pairs_hook=list))
        return True

    asked = ToolCall(id="c", name="delete", arguments=arguments)
    waits = await Toolbox([careful(ran)]).run([asked])
    await Toolbox([careful(ran)], approve=approve).run([asked])

    assert ran == ["all"]
    assert judged == [[("what", "all")]]
    assert json.loads(waits.pending[0].arguments) == {"what": "all"}


def choices(agent: Agent) -> list[object]:
    return [request.options.tool_choice for request in requests(agent)]


@tool
def look() -> str:
    """Look around."""
    return "seen"


FORCED: list[Any] = [
    "required",
    "look",
    {"type": "function", "function": {"name": "look"}},
    {"type": "any"},
]


@pytest.mark.parametrize("choice", FORCED)
async def test_a_choice_that_forces_a_call_holds_for_the_first_answer(choice: Any) -> None:
    agent = agent_of([calls("look"), calls("look"), "done"], tools=[look])
    options = agent.options.model_copy(update={"tool_choice": choice})

    response = await agent.run("go", options=options)

    assert response.text == "done"
    assert choices(agent) == [choice, None, None]


async def test_a_choice_that_allows_some_tools_goes_on_allowing_them() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]}
    agent = agent_of([calls("look"), "done"], tools=[look])

    await agent.run("go", options=agent.options.model_copy(update={"tool_choice": choice}))

    assert choices(agent) == [choice, {**choice, "mode": "auto"}]


async def test_a_run_that_goes_on_with_calls_that_waited_forces_no_other() -> None:
    ran: list[str] = []
    agent = agent_of([deletes(("a", "one")), "done"], tools=[careful(ran)])
    options = agent.options.model_copy(update={"tool_choice": "required"})
    session = agent.create_session()

    await agent.run("go", session=session, options=options)
    await agent.run(session=session, approvals={"a": True}, options=options)

    assert choices(agent) == ["required", None]


async def test_a_model_that_must_call_is_let_go_after_its_last_round() -> None:
    agent = agent_of([calls("look"), "done"], tools=[look], max_rounds=1)
    options = agent.options.model_copy(update={"tool_choice": "required"})

    await agent.run("go", options=options)

    assert choices(agent) == ["required", "none"]


def twice(what: str) -> list[ScriptItem]:
    return [deletes(("a", "one")), "first", deletes(("b", what)), "second"]


async def test_what_is_allowed_for_good_is_not_asked_for_again() -> None:
    ran: list[str] = []
    agent = agent_of(twice("two"), tools=[careful(ran)])
    session = agent.create_session()
    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"a": Always.THIS_TOOL})

    assert (await agent.run("again", session=session)).text == "second"
    assert ran == ["one", "two"]


async def test_the_same_call_is_allowed_for_good_and_no_other() -> None:
    ran: list[str] = []
    agent = agent_of([*twice("one"), deletes(("c", "two"))], tools=[careful(ran)])
    session = agent.create_session()
    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"a": Always.THIS_CALL})

    assert (await agent.run("again", session=session)).text == "second"
    other = await agent.run("another", session=session)
    assert [call.id for call in other.pending] == ["c"]
    assert ran == ["one", "one"]


async def test_a_callback_may_allow_for_good() -> None:
    ran: list[str] = []
    asked: list[str] = []

    def approve(call: ToolCall) -> Always:
        asked.append(call.id)
        return Always.THIS_TOOL

    agent = agent_of(twice("two"), tools=[careful(ran)], approve=approve)
    session = agent.create_session()
    await agent.run("go", session=session)
    await agent.run("again", session=session)

    assert (asked, ran) == (["a"], ["one", "two"])


async def test_what_is_allowed_for_good_holds_in_another_process() -> None:
    ran: list[str] = []
    store = MemoryStore()
    async with agent_of(twice("two")[:2], tools=[careful(ran)], store=store) as agent:
        session = agent.create_session("s")
        await agent.run("go", session=session)
        await agent.run(session=session, approvals={"a": Always.THIS_TOOL})
    async with agent_of(twice("two")[2:], tools=[careful(ran)], store=store) as agent:
        response = await agent.run("again", session=agent.create_session("s"))

    assert response.text == "second"
    assert ran == ["one", "two"]


async def test_of_several_calls_one_may_be_allowed_for_good_before_the_others() -> None:
    ran: list[str] = []
    store = MemoryStore()
    script: list[ScriptItem] = [deletes(("a", "one"), ("b", "two")), "done"]
    agent = agent_of(script, tools=[careful(ran)], store=store)
    session = agent.create_session("s")
    await agent.run("go", session=session)

    waiting = await agent.run(session=session, approvals={"a": Always.THIS_CALL})
    assert [call.id for call in waiting.pending] == ["b"]
    assert (await agent.run(session=session, approvals={"b": True})).text == "done"
    assert ran == ["one", "two"]
