"""What becomes of tool results in runs: kept for their session alone, and always sendable."""

from __future__ import annotations

import asyncio
import logging

import pytest

from agent_context import AgentSession, Message, ToolCall
from agent_context.agent import AgentUpdate
from agent_context.errors import ToolError
from agent_context.messages import ImagePart, OpaquePart, TextPart
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import Limits, ToolContext, tool
from agent_context_backends.scripted import ScriptItem
from tests.agent.conftest import agent_of, calls, texts
from tests.support.waiting import WAIT


def asks_for(tool_name: str, call_id: str, arguments: str = "{}") -> Message:
    return Message.assistant(tool_calls=[ToolCall(id=call_id, name=tool_name, arguments=arguments)])


@tool
def secret() -> str:
    """Say more than can be read at once."""
    return "my secret " * 100


READ_C1 = asks_for("read_tool_result", "r", '{"id": "c1", "limit": 9}')


async def test_a_long_result_is_read_by_its_own_session_alone() -> None:
    agent = agent_of(
        [asks_for("secret", "c1"), "ok", READ_C1, "ok", READ_C1, "ok"],
        tools=[secret],
        limits=Limits(max_result=100),
    )
    mine, theirs = agent.create_session("x"), agent.create_session("x")

    await agent.run("go", session=mine)
    own = await agent.run("more", session=mine)
    other = await agent.run("more", session=theirs)

    assert texts(own.messages)[1].startswith("my secret")
    assert "secret" not in "".join(texts(other.messages))


async def test_runs_without_a_session_share_no_results() -> None:
    script: list[ScriptItem] = [asks_for("secret", "c1"), "ok", READ_C1, "ok"]
    agent = agent_of(script, tools=[secret], limits=Limits(max_result=100))

    await agent.run("go")
    other = await agent.run("more")

    assert "secret" not in "".join(texts(other.messages))


async def test_a_long_result_goes_where_its_session_goes() -> None:
    script: list[ScriptItem] = [asks_for("secret", "c1"), "ok", READ_C1, "ok"]
    agent = agent_of(script, tools=[secret], limits=Limits(max_result=100))
    session = agent.create_session()
    await agent.run("go", session=session)

    moved = AgentSession.from_dict(await session.snapshot())
    response = await agent.run("more", session=moved)

    assert texts(response.messages)[1].startswith("my secret")


HALF = "half a \ud800 pair"


@tool
def fails(n: int = 0) -> str:
    """Raise words that can't be stored."""
    raise ToolError(HALF)


@tool
def breaks() -> str:
    """Raise what no tool should."""
    raise ValueError(HALF)


@tool
def parts() -> object:
    """Return parts that can't be stored."""
    odd = {"type": "x", HALF: [HALF, 10**30, float("nan")]}
    return [TextPart(text=HALF), OpaquePart(data=odd), ImagePart(url=HALF)]


@tool
def whole() -> Message:
    """Return a message with fields that can't be stored."""
    return Message(role="user", content=HALF, note=HALF, number=-(10**30))  # type: ignore[call-arg,arg-type]


@tool
def long() -> str:
    """Return more than is read at once."""
    return "x" * 1_000


@pytest.fixture(params=["none", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Store | None:
    if request.param == "none":
        return None
    if request.param == "memory":
        return MemoryStore()
    return SqliteStore(tmp_path_factory.mktemp("store") / "x.db")


@pytest.mark.parametrize(
    ("name", "call_id", "arguments", "said"),
    [
        ("fails", "c", "{}", "half a ? pair"),
        ("breaks", "c", "{}", "ValueError: half a ? pair"),
        ("parts", "c", "{}", "half a ? pair"),
        ("whole", "c", "{}", "half a ? pair"),
        ("fails", "c", '{"n": ' + "9" * 5_000 + "}", "not valid JSON: Exceeds the limit"),
        ("fails", "c", '{"n":' + "[" * 100_000 + "]" * 100_000 + "}", "recursion"),
        ("fails", "c", '{"n": 1e999}', "n: "),
        ("long", "c\0d", "{}", "read_tool_result shows them: id 'call-"),
        ("long", "../" * 200, "{}", "read_tool_result shows them: id 'call-"),
        ("long", "c d/'e'", "{}", "read_tool_result shows them: id 'call-"),
        ("nothing\0", "c", "{}", "There is no tool"),
    ],
)
async def test_no_call_and_no_result_ends_a_run(
    store: Store | None,
    name: str,
    call_id: str,
    arguments: str,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A log with half a pair can't be carried from one process of pytest to another.
    caplog.set_level(logging.CRITICAL)
    agent = agent_of(
        [asks_for(name, call_id, arguments), "done"],
        tools=[fails, breaks, parts, whole, long],
        limits=Limits(max_result=200),
        store=store,
    )

    response = await agent.run("go", session=agent.create_session())

    assert said in response.messages[1].text
    assert response.messages[1].tool_call_id == call_id
    assert response.text == "done"
    await agent.drain()


async def test_listeners_hear_of_calls_and_progress_before_the_tool_has_ended() -> None:
    heard, on = asyncio.Event(), asyncio.Event()

    @tool
    async def work(context: ToolContext) -> str:
        context.report("halfway")
        async with asyncio.timeout(WAIT):
            await heard.wait()
        on.set()
        return "worked"

    agent = agent_of([calls("work"), "done"], tools=[work])
    updates: list[AgentUpdate] = []
    async for update in agent.run("go", stream=True):
        updates.append(update)
        if update.progress is not None:
            assert not on.is_set()
            heard.set()

    first, second, third = updates[:3]
    assert [call.id for call in first.tool_calls] == ["work"]
    assert second.progress is not None
    assert (second.progress.call.id, second.progress.text) == ("work", "halfway")
    assert texts(third.results) == ["worked"]
