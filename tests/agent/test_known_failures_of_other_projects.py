"""Failures that were reported of other projects, and do not happen in runs of agents.

Each test names the report; conversations by themselves have such tests one folder up.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_context import (
    Agent,
    AgentSession,
    Append,
    Compress,
    Message,
    Role,
    SendOptions,
    SlidingWindow,
    Summarize,
    TextDelta,
    TokenBudget,
)
from agent_context.protocol import History
from agent_context.providers import (
    ClockProvider,
    ContextProvider,
    FileHistoryProvider,
    SqliteHistoryProvider,
)
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import tool
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.scripted import Hold
from agent_context_backends.zhipu import ZhipuBackend
from tests.agent.conftest import agent_of, calls, requests, sent, texts
from tests.support.waiting import WAIT, wait_for
from tests.wire.rules import deepseek_refuses, faults

pay = tool(lambda: "paid", name="pay", description="Pay.", approval="require")
look = tool(lambda: "seen " * 50, name="look", description="Look.")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(SqliteStore(tmp_path / "talks.db")) as kept:
        yield kept


def crash(store: Store) -> None:
    """Leave behind what a killed process leaves: nothing of it can write any more."""
    for about in store.conversations():
        store.claim(about.id)


async def stopped(session: AgentSession) -> None:
    assert session.conversation is not None
    await asyncio.to_thread(session.conversation.stop)


@pytest.mark.parametrize("strategy", [Summarize(keep=0), SlidingWindow(1), TokenBudget(1)])
async def test_a_call_that_waits_outlives_compressions_and_crashes(
    store: Store, strategy: Any
) -> None:
    """adk-python#4740, #5602."""
    words = "word " * 200
    agent = agent_of(
        [words, words, calls("pay"), "They talked.", "Thanks."], tools=[pay], store=store
    )
    session = agent.create_session("s")
    for text in ("one", "two", "pay it"):
        await agent.run(text, session=session)
    assert session.conversation is not None
    await session.conversation.aask(Compress(strategy))
    crash(store)

    again = AgentSession("s")
    response = await agent.run(session=again, approvals={"pay": True})

    assert texts(response.messages)[:2] == ["pay", "paid"]
    assert sent(agent)[-2:] == ["assistant: pay", "tool: paid"]
    await stopped(again)


async def test_a_call_that_nobody_decides_on_does_not_stop_compression(store: Store) -> None:
    """adk-python#7236."""
    agent = agent_of([calls("pay"), *["word " * 200] * 4, "They talked."], tools=[pay], store=store)
    session = agent.create_session("s")
    for text in "abcde":
        await agent.run(text, session=session)

    assert session.conversation is not None
    report = await session.conversation.aask(Compress(Summarize(keep=2)))

    assert report.changed
    assert len(await session.get_messages()) == 3
    await stopped(session)


async def test_a_compression_and_a_run_are_not_in_each_others_way(store: Store) -> None:
    """adk-python#4751: a compaction in the background made the next turn stale;
    openai-agents#4679: what was said meanwhile was lost."""
    hold = Hold()
    agent = agent_of(["word " * 200, "word " * 200, hold, "They talked.", "three"], store=store)
    session = agent.create_session("s")
    for text in "ab":
        await agent.run(text, session=session)
    assert session.conversation is not None
    compression = asyncio.create_task(session.conversation.aask(Compress(Summarize(keep=2))))
    await asyncio.to_thread(wait_for, hold.entered)

    response = await agent.run("c", session=session)
    hold.release()

    assert (await compression).changed
    assert response.text == "three"
    assert [m.text for m in await session.get_messages()][-2:] == ["c", "three"]
    await stopped(session)


@pytest.mark.parametrize("end", ["cancel", "leave", "crash"])
async def test_a_stream_that_is_cut_short_leaves_its_turn_whole(store: Store, end: str) -> None:
    """openai-agents#1895, #1658: the turn was dropped, or the user's message stood alone."""
    hold = Hold()
    agent = agent_of([calls("look"), [TextDelta("Half"), hold], "Done."], tools=[look], store=store)
    session = agent.create_session("s")
    stream = agent.run("go", session=session, stream=True)
    task = asyncio.create_task(stream.get_final_response())
    await asyncio.to_thread(wait_for, hold.entered)

    if end == "crash":
        crash(store)
        hold.release()
    if end == "leave":
        await stream.aclose()
    task.cancel()
    await asyncio.wait([task])
    again = AgentSession("s") if end == "crash" else session
    await agent.run("on", session=again)

    said = sent(agent)
    assert said[:2] == ["user: go", "assistant: look"]
    assert said[2].startswith("tool: seen")
    assert said[3:] == (["user: on"] if end == "crash" else ["assistant: Half", "user: on"])
    await stopped(again)


async def test_what_is_kept_grows_with_what_is_said(store: Store) -> None:
    """langgraph#7094, #3898: every checkpoint held all messages."""
    agent = agent_of([calls("look"), "Fine."] * 120, tools=[look], store=store)
    session = agent.create_session("s")
    sizes: list[int] = []

    for turn in range(1, 121):
        await agent.run("go", session=session)
        if turn % 60 == 0:
            entries = store.entries("s", limit=10_000)
            sizes.append(sum(len(entry.payload) for entry in entries))

    said = sum(len(message.text) for message in await session.get_messages())
    assert sizes[1] < 2.1 * sizes[0]
    assert sizes[1] < 5 * said
    await stopped(session)


async def test_many_may_begin_at_once(store: Store) -> None:
    """openai-agents#4987, mem0#7196: database is locked."""
    agent = agent_of(["hi"] * 40, store=store)
    sessions = [agent.create_session(f"s{n}") for n in range(40)]

    await asyncio.gather(*(agent.run("go", session=session) for session in sessions))

    assert len(store.conversations(limit=100)) == 40
    for session in sessions:
        await stopped(session)


WRITER = """
import asyncio, sys
from agent_context import Message
from agent_context.providers import SqliteHistoryProvider

async def main():
    provider = SqliteHistoryProvider(sys.argv[1])
    for number in range(8):
        await provider.save_messages("s", [Message.user(f"{sys.argv[2]} {number}")])

asyncio.run(main())
"""


def test_a_history_in_a_database_takes_several_processes(tmp_path: Path) -> None:
    """The same, for processes that start together on a new file."""
    path = tmp_path / "history.db"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, name]) for name in "abc"]
    codes = [writer.wait(WAIT) for writer in writers]

    kept = asyncio.run(SqliteHistoryProvider(path).get_messages("s"))

    assert codes == [0, 0, 0]
    assert sorted(m.text for m in kept) == sorted(f"{w} {n}" for w in "abc" for n in range(8))


def tear(path: Path, tail: bytes) -> None:
    with path.open("ab") as file:
        file.write(tail)


@pytest.mark.parametrize("tail", [b"\0" * 700, b'{"role": "user", "con', b"\xff\xfe{", b"\0{}\0"])
async def test_a_torn_end_eats_no_record(
    tmp_path: Path, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """prime-agent#928, claude-code#49876: and load and save raised for ever."""
    agent = agent_of(["1", "2", "3"], context_providers=[FileHistoryProvider(tmp_path)])
    await agent.run("a", session=AgentSession("s"), wait_for_persistence=True)
    tear(tmp_path / "s.jsonl", tail)

    for text in "bc":
        await agent.run(text, session=AgentSession("s"), wait_for_persistence=True)

    assert sent(agent) == [
        "user: a", "assistant: 1", "user: b", "assistant: 2", "user: c",
    ]  # fmt: skip
    assert "is left out" in caplog.text


class Server(httpx.MockTransport):
    """Looks around when a user has spoken, thinks aloud, and answers a result in words."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._ids = count()
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(request.content)
        body = json.loads(request.content)
        spoken = [each for each in body["messages"] if each["role"] != "system"][-1]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "Seen.",
            "reasoning_content": "Hm.",
        }
        if spoken["role"] == "user":
            function = {"name": "look", "arguments": "{}"}
            call = {"id": f"c{next(self._ids)}", "type": "function", "function": function}
            message |= {"content": "", "tool_calls": [call]}
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return httpx.Response(200, json={"model": body["model"], "choices": [choice]})

    @property
    def messages(self) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = json.loads(self.bodies[-1])["messages"]
        return said


Again = Callable[[AgentSession], AgentSession]


def written_down(session: AgentSession) -> AgentSession:
    return AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))


def by_id(session: AgentSession) -> AgentSession:
    return AgentSession(session.session_id)


@pytest.mark.parametrize(
    ("history", "again"),
    [
        pytest.param(None, by_id, id="store"),
        pytest.param(None, written_down, id="session"),
        pytest.param(FileHistoryProvider, by_id, id="file"),
        pytest.param(SqliteHistoryProvider, by_id, id="database"),
    ],
)
async def test_reasoning_comes_back_to_its_vendor_from_wherever_it_was_kept(
    store: Store, tmp_path: Path, history: Callable[[Path], ContextProvider] | None, again: Again
) -> None:
    """agent-framework#5538, #8382, langchain#34166: reasoning_content must be passed back."""
    providers = [] if history is None else [history(tmp_path / "kept")]
    kept = store if history is None and again is by_id else None
    one, other = Server(), Server()
    deepseek = DeepSeekBackend(api_key="k", transport=one)
    zhipu = ZhipuBackend(api_key="k", transport=other)

    def agent_on(client: ChatCompletionsBackend) -> Agent:
        return client.as_agent(tools=[look], context_providers=providers, store=kept)

    session = AgentSession("s")
    await agent_on(deepseek).run("go", session=session, wait_for_persistence=True)
    later = again(session)
    await stopped(session)
    await agent_on(deepseek).run("on", session=later, wait_for_persistence=True)
    await agent_on(zhipu).run("and?", session=later, wait_for_persistence=True)

    thoughts = [m.get("reasoning_content") for m in one.messages if m["role"] == "assistant"]
    assert thoughts == ["Hm.", "Hm.", "Hm."]
    assert deepseek_refuses(one.messages) is None
    assert faults(other.messages, zhipu.dialect) == []
    foreign = [m for m in other.messages if m["role"] == "assistant"][:4]
    assert not any(m.get("reasoning_content") for m in foreign)
    await stopped(later)


@pytest.mark.parametrize("vendor", [DeepSeekBackend, OpenAIBackend, ZhipuBackend])
async def test_a_clock_costs_no_cache(store: Store, vendor: type[ChatCompletionsBackend]) -> None:
    """home-generative-agent#617, bolna#817: no cached token in any turn. Nor after a restart."""
    server, times = Server(), count()

    def now(_: object) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=next(times))

    client = vendor(api_key="k", transport=server)
    agent = client.as_agent(
        "Be brief.",
        tools=[look],
        context_providers=[ClockProvider(now=now)],
        options=SendOptions(model="gpt-4o" if vendor is OpenAIBackend else None),
        store=store,
    )

    for text in "abc":
        session = AgentSession("s")
        await agent.run(text, session=session, wait_for_persistence=True)
        await stopped(session)

    assert len(server.bodies) == 6
    for one, following in pairwise(server.bodies):
        held = one[: one.rindex(b'{"role"')]
        assert b"2026" not in held
        assert following.startswith(held)


async def test_the_same_words_are_as_many_turns(store: Store) -> None:
    """agent-framework 1.23: the second of two equal turns was not stored."""
    agent = agent_of(["pong"] * 4, store=store)
    said: list[str] = []

    for _ in range(4):
        session = AgentSession("s")
        await agent.run("ping", session=session, wait_for_persistence=True)
        said = texts(await session.get_messages())
        await stopped(session)

    assert said == ["ping", "pong"] * 4
    assert len(requests(agent)) == 4


async def test_what_is_said_between_runs_by_somebody_else_is_kept(store: Store) -> None:
    """adk-python#5194, #1733: a session that had changed meanwhile was stale."""
    agent = agent_of(["1", "2"], store=store)
    session = agent.create_session("s")
    await agent.run("a", session=session)
    assert session.conversation is not None
    await session.conversation.aask(Append(Message.user("by the way")))

    await agent.run("b", session=session)

    page = await session.conversation.aask(History())
    assert [remark.message.text for remark in page.entries] == ["a", "1", "by the way", "b", "2"]
    assert [m.role for m in await session.get_messages()].count(Role.USER) == 3
    await stopped(session)
