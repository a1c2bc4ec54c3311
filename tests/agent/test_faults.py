"""What goes wrong around runs: ends of programs, loops and processes, and misbehaving providers."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_context import AgentSession, ContextProvider, Message, TextDelta
from agent_context.errors import ConversationClosed, RunCancelled, StoreCorrupt
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.tools import tool
from agent_context_backends.scripted import Hold
from tests.agent.conftest import Gives, agent_of, calls, sent, texts
from tests.support.waiting import WAIT, wait_for


@pytest.mark.behaviour(93)
async def test_a_provider_that_hangs_after_the_call_is_given_up() -> None:
    class Hangs(ContextProvider):
        async def after_run(self, **_: Any) -> None:
            await asyncio.Event().wait()

    first = Gives("first")
    agent = agent_of(["1", "2"], context_providers=[first, Hangs()], provider_timeout=0.01)
    session = agent.create_session()

    await agent.run("a", session=session)
    await agent.run("b", session=session)
    await agent.drain(session)

    assert len(first.invoked) == 2


async def test_a_provider_whose_own_task_was_cancelled_stops_no_other() -> None:
    class Awaits(ContextProvider):
        async def after_run(self, **_: Any) -> None:
            raise asyncio.CancelledError

    first = Gives("first")
    agent = agent_of(["1"], context_providers=[first, Awaits()])

    await agent.run("a", wait_for_persistence=True)

    assert len(first.invoked) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_program_that_ends_in_the_middle_of_a_run_tells_its_providers(stream: bool) -> None:
    provider, hold = Gives("p"), Hold()
    agent = agent_of([[TextDelta("first"), hold]], context_providers=[provider])
    tasks: list[object] = []

    async def main() -> None:
        run = agent.run("hello", stream=True).get_final_response() if stream else agent.run("hello")
        tasks.append(asyncio.create_task(run))
        await asyncio.to_thread(wait_for, hold.entered)

    asyncio.run(main())

    assert len(provider.invoked) == 1
    assert isinstance(provider.invoked[0][4], RunCancelled)


def test_a_stream_that_nobody_closed_tells_its_providers_when_the_program_ends() -> None:
    provider, hold = Gives("p"), Hold()
    agent = agent_of([[TextDelta("first"), hold]], context_providers=[provider])
    kept: list[object] = []

    async def main() -> None:
        stream = agent.run("hello", stream=True)
        kept.append(stream)
        async for _ in stream:
            break

    asyncio.run(main())

    assert [type(call[4]) for call in provider.invoked] == [RunCancelled]


async def test_a_stream_may_be_closed_before_it_begins_and_after_its_end() -> None:
    agent = agent_of(["hi"])
    never = agent.run("hello", stream=True)
    await never.aclose()
    assert [update async for update in never] == []

    stream = agent.run("hello", stream=True)
    response = await stream.get_final_response()
    await stream.aclose()

    assert stream.response is response


async def test_a_reader_that_is_cancelled_ends_the_run() -> None:
    provider, hold = Gives("p"), Hold()
    agent = agent_of([[TextDelta("first"), hold]], context_providers=[provider])
    stream = agent.run("hello", stream=True)

    async def read() -> None:
        async for _ in stream:
            pass

    reader = asyncio.create_task(read())
    await asyncio.to_thread(wait_for, hold.entered)
    reader.cancel()
    await asyncio.wait([reader])
    await agent.drain()

    assert isinstance(provider.invoked[0][4], RunCancelled)
    assert provider.invoked[0][3] is None
    with pytest.raises(RunCancelled):
        _ = stream.response


async def test_who_is_cancelled_while_waiting_for_a_turn_leaves_the_queue() -> None:
    hold = Hold()
    agent = agent_of([hold, "1", "3"])
    session = agent.create_session()
    runs = [asyncio.create_task(agent.run(text, session=session)) for text in "abc"]
    await asyncio.to_thread(wait_for, hold.entered)
    runs[1].cancel()
    await asyncio.wait([runs[1]])

    hold.release()
    await asyncio.gather(runs[0], runs[2])

    assert texts(await session.get_messages()) == ["a", "1", "c", "3"]


async def test_a_conversation_that_was_stopped_is_an_error_and_providers_are_told() -> None:
    provider = Gives("p")
    agent = agent_of(["1", "2"], context_providers=[provider])
    session = agent.create_session()
    await agent.run("a", session=session, wait_for_persistence=True)
    assert session.conversation is not None
    session.conversation.stop()

    with pytest.raises(ConversationClosed):
        await agent.run("b", session=session)

    await agent.drain(session)
    assert len(provider.invoked) == 1, "the second run never came to its providers"


async def test_a_kept_conversation_that_was_stopped_goes_on() -> None:
    agent = agent_of(["1", "2"], store=MemoryStore())
    session = agent.create_session("s")
    await agent.run("a", session=session)
    assert session.conversation is not None
    session.conversation.stop()

    await agent.run("b", session=session)

    assert sent(agent) == ["user: a", "assistant: 1", "user: b"]


class Counts(ContextProvider):
    """Counts the runs of a session."""

    async def before_run(self, *, context: Any, state: Any, **_: Any) -> None:
        context.extend_instructions(self, f"run {state.get('n', 0)}")

    async def after_run(self, *, state: Any, **_: Any) -> None:
        state["n"] = state.get("n", 0) + 1


def test_what_providers_remember_outlives_the_process(tmp_path: Path) -> None:
    for number in range(3):
        with closing(SqliteStore(tmp_path / "talk.db")) as store:
            agent = agent_of(["hi"], context_providers=[Counts()], store=store)
            session = agent.create_session("s")
            agent.run_sync("go", session=session)
            assert session.conversation is not None
            session.conversation.stop()

        assert sent(agent)[0] == f"system: run {number}"


async def test_a_kept_state_that_can_not_be_read_is_an_error_that_says_so() -> None:
    store = MemoryStore()
    agent = agent_of(["hi"], store=store)
    session = agent.create_session("s")
    await agent.run("go", session=session, wait_for_persistence=True)
    store.put_attachment("s", "session", b"{")

    with pytest.raises(StoreCorrupt, match="the state of <session s> can't be read"):
        await agent_of(["hi"], store=store).run("go", session=AgentSession("s"))


async def test_a_state_that_can_not_be_kept_is_logged_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = agent_of(["hi"], store=MemoryStore())
    session = agent.create_session("s")
    session.state["x"] = object()

    response = await agent.run("go", session=session, wait_for_persistence=True)

    assert response.text == "hi"
    assert "state['x']: a object can't be kept" in caplog.text


@pytest.mark.parametrize("alone", [False, True])
async def test_a_conversation_ends_with_its_session(alone: bool) -> None:
    refs: list[Any] = []

    class Looks(ContextProvider):
        async def before_run(self, *, session: Any, **_: Any) -> None:
            refs.append(session.conversation.actor_ref)

    agent = agent_of(["hi"], context_providers=[Looks()])
    session = None if alone else agent.create_session()
    await agent.run("a", session=session)
    await agent.drain()

    del session
    gc.collect()

    assert await asyncio.to_thread(refs[0].actor_stopped.wait, WAIT)


async def test_runs_without_a_session_are_not_kept() -> None:
    store = MemoryStore()
    agent = agent_of(["1"], store=store)

    await agent.run("a", wait_for_persistence=True)

    assert not store.conversations()


def test_a_session_may_be_used_from_one_loop_after_the_other() -> None:
    agent = agent_of(["1", "2", "3"])
    session = agent.create_session()

    for text in "abc":
        asyncio.run(_run(agent, text, session))

    assert sent(agent)[-1] == "user: c"
    assert len(sent(agent)) == 5


async def _run(agent: Any, text: str, session: Any) -> None:
    await agent.run(text, session=session)


CHILD = """
import asyncio, sys, time
from agent_context import Message, ToolCall
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.tools import tool
from agent_context_backends.scripted import ScriptedBackend

def first() -> str:
    "The first."
    return "done"

def second() -> str:
    "The second."
    print("in the tool", flush=True)
    time.sleep(60)
    return "never"

def calls(name):
    return Message.assistant(tool_calls=[ToolCall(id=name, name=name)])

client = ScriptedBackend([calls("first"), calls("second")])
agent = client.as_agent(tools=[first, second], store=SqliteStore(sys.argv[1]))
asyncio.run(agent.run("go", session=agent.create_session("s")))
"""


def test_a_process_that_is_killed_in_a_tool_leaves_rounds_and_no_open_call(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "in the tool\n"
        child.send_signal(signal.SIGKILL)

    with closing(SqliteStore(path)) as store:
        agent = agent_of(["I see."], store=store)
        session = agent.create_session("s")
        response = agent.run_sync("What happened?", session=session)
        said: list[Message] = asyncio.run(session.get_messages())
        assert session.conversation is not None
        session.conversation.stop()

    assert response.text == "I see."
    assert [m.role.value for m in said] == [
        "user", "assistant", "tool", "assistant", "tool", "user", "assistant",
    ]  # fmt: skip
    assert said[2].text == "done"
    assert "[interrupted]" in said[4].text


PAYER = """
import asyncio, sys, time
from agent_context import Message, ToolCall, tool
from agent_context.stores.sqlite import SqliteStore
from agent_context.tools import tool
from agent_context_backends.scripted import ScriptedBackend

@tool(approval="require")
def pay() -> str:
    "Pay."
    print("paying", flush=True)
    time.sleep(60)
    return "paid"

async def main():
    client = ScriptedBackend([Message.assistant(tool_calls=[ToolCall(id="p", name="pay")])])
    agent = client.as_agent(tools=[pay], store=SqliteStore(sys.argv[1]))
    session = agent.create_session("s")
    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"p": True})

asyncio.run(main())
"""


def test_an_allowed_call_that_a_crash_cut_short_is_not_carried_out_again(tmp_path: Path) -> None:
    path, paid = tmp_path / "talk.db", list[str]()
    with subprocess.Popen(
        [sys.executable, "-c", PAYER, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "paying\n"
        child.send_signal(signal.SIGKILL)

    with closing(SqliteStore(path)) as store:
        pay = tool(lambda: paid.append("again"), name="pay", description="", approval="require")
        agent = agent_of(["I see."], tools=[pay], store=store)
        session = agent.create_session("s")
        response = agent.run_sync(session=session, approvals={"p": True})
        assert session.conversation is not None
        session.conversation.stop()

    assert paid == []
    assert "whether the call had an effect is not known" in response.messages[1].text
    assert response.text == "I see."


async def test_what_still_waits_was_not_begun() -> None:
    pay = tool(lambda: "paid", name="pay", description="", approval="require")
    agent = agent_of([calls("pay"), "done"], tools=[pay], store=MemoryStore())
    session = agent.create_session("s")
    await agent.run("go", session=session)
    assert (await agent.run(session=session)).pending

    response = await agent.run(session=session, approvals={"pay": True})

    assert texts(response.messages) == ["pay", "paid", "done"]


async def test_a_conversation_that_a_store_keeps_has_one_session() -> None:
    store, hold = MemoryStore(), Hold()
    one = agent_of([hold, "1"], store=store)
    other = agent_of(["2"], store=store)
    run = asyncio.create_task(one.run("a", session=one.create_session("s")))
    await asyncio.to_thread(wait_for, hold.entered)

    later = asyncio.create_task(other.run("b", session=other.create_session("s")))
    hold.release()
    await asyncio.gather(run, later)

    assert sent(other) == ["user: a", "assistant: 1", "user: b"]
    assert one.create_session("s") is not one.create_session("t")
    assert agent_of().create_session("s") is not agent_of().create_session("s")
