"""Tools in a run: whose they are, what the model is told, and what becomes of its calls."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from agent_context import Agent, BackendError, FinishReason, Message, Role, Tool, ToolCall
from agent_context.errors import InvalidOptions, TurnAborted
from agent_context.providers import ContextResult
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.tools import FunctionTool, Limits, ToolContext, tool
from tests.agent.conftest import Gives, Works, agent_of, calls, requests, sent, texts


@tool
def look(where: str = "here") -> str:
    """Look around."""
    return f"nothing {where}"


def named(name: str, says: str, **settings: object) -> FunctionTool:
    """A tool that says something."""
    return tool(lambda: says, name=name, description=says, **settings)  # type: ignore[call-overload, no-any-return]


def told(agent: Agent, index: int = -1) -> list[tuple[str, str]]:
    """Names and descriptions of the tools in a request."""
    return [(tool.name, tool.description) for tool in requests(agent)[index].options.tools]


def gives(source: str, *tools: Tool) -> Gives:
    return Gives(source, ContextResult(tools=tools))


@pytest.mark.behaviour(41)
@pytest.mark.behaviour(42)
async def test_of_tools_with_one_name_the_agents_wins_and_then_the_earlier_provider() -> None:
    agent = agent_of(
        [calls("a", "b"), "done"],
        tools=[named("a", "the agent's")],
        context_providers=[
            gives("one", named("a", "one's"), named("b", "one's")),
            gives("two", named("b", "two's"), named("c", "two's")),
        ],
    )

    response = await agent.run("go")

    assert told(agent) == [("a", "the agent's"), ("b", "one's"), ("c", "two's")]
    results = [m.text for m in response.messages if m.role is Role.TOOL]
    assert results == ["the agent's", "one's"]
    assert [(d.source, d.phase) for d in response.diagnostics] == [("a", "merge"), ("b", "merge")]


async def test_a_conflict_may_be_an_error() -> None:
    agent = agent_of(
        [],
        tools=[named("a", "1")],
        context_providers=[gives("p", named("a", "2"))],
        tool_conflict="error",
    )

    with pytest.raises(InvalidOptions, match="'a' of the agent and p"):
        await agent.run("go")


@pytest.mark.behaviour(43)
async def test_a_tool_goes_out_as_a_function_with_its_schema() -> None:
    agent = agent_of(["hi"], tools=[look])

    await agent.run("go")

    [offered] = requests(agent)[0].options.tools
    assert (offered.name, offered.description) == ("look", "Look around.")
    assert offered.parameters["properties"]["where"]["type"] == "string"


@pytest.mark.behaviour(44)
@pytest.mark.behaviour(97)
async def test_a_providers_tool_can_be_called_although_the_agent_has_none() -> None:
    agent = agent_of([calls("p"), "done"], context_providers=[gives("p", named("p", "called"))])

    response = await agent.run("go")

    assert texts(response.messages) == ["p", "called", "done"]


@pytest.mark.behaviour(45)
@pytest.mark.behaviour(98)
async def test_calls_are_answered_until_there_are_none() -> None:
    agent = agent_of([calls("look"), calls("look"), "done"], tools=[look])
    session = agent.create_session()

    response = await agent.run("go", session=session)

    assert response.text == "done"
    stored = await session.get_messages()
    assert [m.role.value for m in stored] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert stored[1:] == list(response.messages)


async def test_a_runs_own_tools_stand_behind_the_agents() -> None:
    agent = agent_of(["hi"], tools=[named("a", "1")])

    await agent.run("go", tools=[named("b", "2")])

    assert told(agent) == [("a", "1"), ("b", "2")]


async def test_a_tool_that_fails_is_told_to_the_model() -> None:
    def broken() -> str:
        raise ValueError("no disk")

    agent = agent_of([calls("broken", "nowhere"), "sorry"], tools=[broken])

    response = await agent.run("go")

    failed, unknown = (m.text for m in response.messages if m.role is Role.TOOL)
    assert "ValueError" in failed
    assert "no disk" in failed
    assert "nowhere" in unknown
    assert response.text == "sorry"


async def test_a_tool_that_hangs_is_cancelled_with_the_run_and_leaves_no_open_call() -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    provider = Gives("p")
    agent = agent_of([calls("hangs"), "next"], tools=[hangs], context_providers=[provider])
    session = agent.create_session()
    task = asyncio.create_task(agent.run("go", session=session))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await agent.drain(session)

    assert cancelled.is_set()
    assert len(provider.invoked) == 1
    stored = await session.get_messages()
    assert [m.role.value for m in stored] == ["user", "assistant", "tool"]
    assert "[interrupted]" in stored[-1].text
    assert (await agent.run("again", session=session)).text == "next"


async def test_a_model_that_fails_after_a_round_leaves_the_round() -> None:
    provider = Works("p")
    agent = agent_of(
        [calls("look"), BackendError("down"), "next"], tools=[look], context_providers=[provider]
    )
    session = agent.create_session()

    with pytest.raises(BackendError):
        await agent.run("go", session=session)
    await agent.drain(session)

    assert texts(await session.get_messages()) == ["go", "look", "nothing here"]
    [context] = provider.contexts
    assert context.partial_response is not None
    assert texts(context.partial_response.messages) == ["look", "nothing here"]


async def test_a_model_that_never_stops_is_made_to_answer() -> None:
    agent = agent_of([calls("look"), calls("look"), "so be it"], tools=[look], max_rounds=2)

    response = await agent.run("go")

    assert response.text == "so be it"
    assert [request.options.tool_choice for request in requests(agent)] == [None, None, "none"]


async def test_a_model_that_calls_tools_all_the_same_is_given_up() -> None:
    agent = agent_of([calls("look")] * 9, tools=[look], max_rounds=1)

    with pytest.raises(TurnAborted, match="went on calling tools after 1 rounds"):
        await agent.run("go")


async def test_tools_run_on_the_callers_loop_and_know_their_conversation() -> None:
    seen: list[object] = []

    async def where(context: ToolContext) -> str:
        seen.extend([asyncio.get_running_loop(), context.conversation_id])
        return "ok"

    agent = agent_of([calls("where"), "done"], tools=[where])
    session = agent.create_session("s")

    await agent.run("go", session=session)

    assert seen == [asyncio.get_running_loop(), "s"]


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["memory", "store"])
async def test_a_long_result_can_be_read_on_in_a_later_run(store: MemoryStore | None) -> None:
    long = "".join(f"{number:04}" for number in range(1_000))
    more = ToolCall(id="r", name="read_tool_result", arguments='{"id": "list", "offset": 2000}')
    agent = agent_of(
        [calls("list"), "noted", Message.assistant(tool_calls=[more]), "done"],
        tools=[named("list", long)],
        limits=Limits(max_result=200),
        store=store,
    )
    session = agent.create_session("s")
    await agent.run("go", session=session)

    response = await agent.run("go on", session=session)

    assert ("read_tool_result" in dict(told(agent, 0)), told(agent)[-1][0]) == (
        False,
        "read_tool_result",
    )
    assert "0500" in response.messages[1].text
    assert "0549" in response.messages[1].text


def careful(says: str = "deleted") -> FunctionTool:
    return tool(lambda: says, name="delete", description="Delete all.", approval="require")


async def test_a_run_ends_where_a_call_waits_and_goes_on_when_it_is_allowed() -> None:
    agent = agent_of([calls("delete"), "done"], tools=[careful()])
    session = agent.create_session()

    waits = await agent.run("go", session=session)
    goes_on = await agent.run(session=session, approvals={"delete": True})

    assert [call.name for call in waits.pending] == ["delete"]
    assert waits.finish_reason is FinishReason.TOOL_CALLS
    assert not goes_on.pending
    assert texts(goes_on.messages) == ["delete", "deleted", "done"]
    assert texts(await session.get_messages()) == ["go", "delete", "deleted", "done"]


@pytest.mark.parametrize(("decision", "said"), [(False, "not allowed"), ("too late", "too late")])
async def test_a_call_that_is_refused_is_told_so(decision: bool | str, said: str) -> None:
    ran: list[str] = []
    delete = tool(lambda: ran.append("x"), name="delete", description="", approval="require")
    agent = agent_of([calls("delete"), "fine"], tools=[delete])
    session = agent.create_session()
    await agent.run("go", session=session)

    response = await agent.run(session=session, approvals={"delete": decision})

    assert not ran
    assert said in response.messages[1].text
    assert response.text == "fine"


async def test_without_a_decision_the_call_still_waits() -> None:
    agent = agent_of([calls("delete")], tools=[careful()])
    session = agent.create_session()
    await agent.run("go", session=session)

    again = await agent.run(session=session)

    assert [call.id for call in again.pending] == ["delete"]
    assert len(requests(agent)) == 1


async def test_all_calls_of_an_answer_wait_for_the_last_decision() -> None:
    agent = agent_of([calls("delete", "other"), "done"], tools=[careful(), again()])
    session = agent.create_session()
    await agent.run("go", session=session)

    half = await agent.run(session=session, approvals={"delete": True})
    whole = await agent.run(session=session, approvals={"delete": True, "other": False})

    assert [call.id for call in half.pending] == ["other"]
    assert half.completion is None
    assert whole.text == "done"
    assert whole.messages[1].text == "deleted"
    assert "not allowed" in whole.messages[2].text


def again() -> FunctionTool:
    return tool(lambda: "x", name="other", description="", approval="require")


async def test_a_resumed_run_tells_its_listeners_what_came_of_the_calls() -> None:
    agent = agent_of([calls("delete"), "done"], tools=[careful()])
    session = agent.create_session()
    waits = await agent.run("go", session=session, stream=True).get_final_response()

    stream = agent.run(session=session, approvals={"delete": True}, stream=True)
    updates = [update async for update in stream]

    assert [call.id for call in waits.pending] == ["delete"]
    assert [call.id for call in updates[0].tool_calls] == ["delete"]
    assert texts(updates[1].results) == ["deleted"]
    assert "".join(update.text for update in updates) == "done"


async def test_an_allowed_call_that_is_cut_short_leaves_no_open_call() -> None:
    entered = asyncio.Event()

    async def hangs() -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    hanging = tool(hangs, name="delete", description="", approval="require")
    agent = agent_of([calls("delete"), "next"], tools=[hanging])
    session = agent.create_session()
    await agent.run("go", session=session)
    run = asyncio.create_task(agent.run(session=session, approvals={"delete": True}))
    await entered.wait()
    run.cancel()
    await asyncio.wait([run])

    response = await agent.run("again", session=session)

    stored = await session.get_messages()
    assert [m.role.value for m in stored] == ["user", "assistant", "tool", "user", "assistant"]
    assert "[interrupted]" in stored[2].text
    assert response.text == "next"


async def test_a_user_who_goes_on_talking_leaves_the_call_undone() -> None:
    agent = agent_of([calls("delete"), "as you like"], tools=[careful()])
    session = agent.create_session()
    await agent.run("go", session=session)

    await agent.run("never mind", session=session)

    stored = await session.get_messages()
    assert [m.role.value for m in stored] == ["user", "assistant", "tool", "user", "assistant"]
    assert "nobody allowed it" in stored[2].text


async def test_a_program_may_answer_a_call_itself() -> None:
    agent = agent_of([calls("ask"), "thanks"], tools=[Tool(name="ask")])
    session = agent.create_session()
    waits = await agent.run("go", session=session)

    answer = Message.tool(waits.pending[0].id, "blue")
    response = await agent.run(answer, session=session)

    assert texts(response.messages) == ["ask", "blue", "thanks"]
    assert texts(await session.get_messages()) == ["go", "ask", "blue", "thanks"]


async def test_a_decision_on_no_call_is_refused_and_changes_nothing() -> None:
    agent = agent_of([calls("delete")], tools=[careful()])
    session = agent.create_session()
    with pytest.raises(InvalidOptions, match="none does"):
        await agent.run(session=session, approvals={"x": True})
    await agent.run("go", session=session)

    with pytest.raises(InvalidOptions, match="no call 'x' waits; these wait: delete"):
        await agent.run(session=session, approvals={"x": True})

    assert texts(await session.get_messages()) == ["go", "delete"]


async def test_somebody_may_decide_at_once() -> None:
    agent = agent_of(
        [calls("delete"), "done"], tools=[careful()], approve=lambda call: call.name == "delete"
    )

    response = await agent.run("go")

    assert texts(response.messages) == ["delete", "deleted", "done"]


async def test_a_provider_can_not_take_the_need_for_approval_away() -> None:
    free = named("delete", "deleted")
    agent = agent_of([calls("delete")], tools=[free], context_providers=[gives("p", careful())])

    response = await agent.run("go")

    assert [call.name for call in response.pending] == ["delete"]


def test_a_call_waits_even_across_processes(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    with closing(SqliteStore(path)) as store:
        agent = agent_of([calls("delete")], tools=[careful()], store=store)
        session = agent.create_session("s")
        assert agent.run_sync("go", session=session).pending
        assert session.conversation is not None
        session.conversation.stop()

    with closing(SqliteStore(path)) as store:
        agent = agent_of(["done"], tools=[careful()], store=store)
        session = agent.create_session("s")
        response = agent.run_sync(session=session, approvals={"delete": True})
        assert session.conversation is not None
        session.conversation.stop()

    assert texts(response.messages) == ["delete", "deleted", "done"]
    assert sent(agent) == ["user: go", "assistant: delete", "tool: deleted"]
