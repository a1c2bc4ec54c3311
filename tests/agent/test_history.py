"""Where the history of a session comes from, and where it goes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import (
    AgentResponse,
    BackendError,
    Completion,
    ContextProvider,
    HistoryProvider,
    Message,
    TextDelta,
    ToolCall,
)
from agent_context.errors import StoreUnavailable, UsageError
from agent_context.providers import (
    BaseContextProvider,
    BaseHistoryProvider,
    ContextResult,
    FileHistoryProvider,
    InMemoryHistoryProvider,
    SqliteHistoryProvider,
)
from agent_context.providers.history import select_messages_to_persist
from agent_context.tools import tool
from tests.agent.conftest import Gives, agent_of, calls, requests, says, sent, texts


class Rows(HistoryProvider):
    """A history elsewhere, and every call of it."""

    def __init__(self, source_id: str = "rows", **settings: Any) -> None:
        super().__init__(source_id, **settings)
        self.rows: dict[str | None, list[dict[str, Any]]] = {}
        self.saved: list[list[str]] = []
        self.states: list[dict[str, Any] | None] = []

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        self.states.append(state)
        return [Message.from_dict(row) for row in self.rows.get(session_id, [])]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.states.append(state)
        self.saved.append(texts(messages))
        self.rows.setdefault(session_id, []).extend(m.to_dict() for m in messages)


@pytest.mark.behaviour(57)
@pytest.mark.behaviour(58)
async def test_the_second_run_of_a_session_sees_the_first() -> None:
    agent = agent_of(
        ["noted", "pasta"],
        name="MemoryBot",
        instructions="You are a helpful assistant.",
        context_providers=[InMemoryHistoryProvider("memory", load_messages=True)],
    )
    session = agent.create_session()

    await agent.run("I prefer vegetarian food.", session=session)
    await agent.run("What shall I eat?", session=session)

    assert sent(agent)[1:] == [
        "user: I prefer vegetarian food.",
        "assistant: noted",
        "user: What shall I eat?",
    ]


@pytest.mark.behaviour(59)
@pytest.mark.parametrize("providers", [[], [InMemoryHistoryProvider("memory")], [Rows()]])
async def test_an_agent_has_one_history_whether_it_is_told_or_not(
    providers: list[ContextProvider],
) -> None:
    agent = agent_of(["1", "2"], context_providers=providers)
    session = agent.create_session()

    await agent.run("a", session=session)
    await agent.run("b", session=session)

    assert sent(agent) == ["user: a", "assistant: 1", "user: b"]
    assert list(agent.context_providers) == providers


@pytest.mark.behaviour(52)
def test_what_is_stored_of_a_response_is_its_transcript_or_else_its_answer() -> None:
    call = ToolCall(id="c", name="look")
    said = [
        Message.user("q"),
        Message.assistant("", tool_calls=[call]),
        Message.tool("c", "r"),
        Message.assistant("a"),
    ]
    whole = AgentResponse(messages=said, completion=Completion(message=said[-1]))
    only_text = AgentResponse(completion=Completion(message=said[-1]))
    nothing = AgentResponse(completion=Completion(message=Message.assistant("")))

    assert select_messages_to_persist(whole) == said[1:]
    assert select_messages_to_persist(only_text) == said[-1:]
    assert select_messages_to_persist(nothing) == []
    assert select_messages_to_persist(AgentResponse()) == []


def test_calls_without_results_are_never_stored() -> None:
    call = ToolCall(id="c", name="look")
    open_call = Message.assistant("", tool_calls=[call])
    whole = Message.assistant("thinking")

    response = AgentResponse(messages=[whole, open_call])

    assert select_messages_to_persist(response) == [whole]


@pytest.mark.behaviour(53)
async def test_what_a_run_said_is_saved_in_one_call() -> None:
    rows = Rows()
    look = tool(lambda: "seen", name="look", description="")
    agent = agent_of([calls("look"), "done"], tools=[look], context_providers=[rows])

    await agent.run("go", session=agent.create_session("s"), wait_for_persistence=True)

    assert rows.saved == [["go", "look", "seen", "done"]]
    assert list(rows.rows) == ["s"]


@pytest.mark.behaviour(66)
@pytest.mark.behaviour(69)
async def test_a_history_elsewhere_stands_in_the_place_of_the_conversations() -> None:
    rows = Rows()
    rows.rows["s"] = [Message.user("long ago").to_dict(), Message.assistant("yes").to_dict()]
    agent = agent_of(["1", "2"], context_providers=[rows])
    session = agent.create_session("s")

    await agent.run("a", session=session)
    await agent.run("b", session=session)

    assert sent(agent) == [
        "user: long ago", "assistant: yes", "user: a", "assistant: 1", "user: b",
    ]  # fmt: skip
    assert all(state is session.state["rows"] for state in rows.states)


async def test_context_follows_a_history_elsewhere() -> None:
    rows = Rows()
    agent = agent_of(
        ["1", "2"], context_providers=[Gives("a", says("A")), rows, Gives("b", says("B"))]
    )
    session = agent.create_session()

    await agent.run("x", session=session)
    await agent.run("y", session=session)

    assert sent(agent) == ["user: A", "user: x", "assistant: 1", "user: B", "user: y"]


async def test_what_stands_before_the_conversations_history_goes_out_before_it() -> None:
    agent = agent_of(
        ["1", "2"], context_providers=[Gives("a", says("A")), InMemoryHistoryProvider("memory")]
    )
    session = agent.create_session()

    await agent.run("x", session=session)
    await agent.run("y", session=session)

    assert sent(agent) == ["user: A", "user: x", "assistant: 1", "user: y"]


@given(
    texts=st.lists(st.text(max_size=20), max_size=3),
    reasoning=st.none() | st.text(max_size=5),
    extra=st.dictionaries(
        st.from_regex(r"x_[a-z]{1,5}", fullmatch=True), st.integers() | st.none()
    ),
    calls=st.lists(st.text(min_size=1, max_size=5), max_size=2),
)
@pytest.mark.behaviour(67)
def test_a_message_comes_back_from_its_dict_as_it_was(
    texts: list[str], reasoning: str | None, extra: dict[str, Any], calls: list[str]
) -> None:
    made = Message.assistant(
        texts, reasoning=reasoning, tool_calls=[ToolCall(id=c, name=c) for c in calls]
    )
    message = made.model_copy(update={"interrupted": bool(texts), **extra})

    again = Message.from_dict(json.loads(json.dumps(message.to_dict())))

    assert again == message
    assert again.id == message.id


@pytest.mark.behaviour(71)
async def test_one_that_does_not_load_stores_and_adds_nothing_to_the_prompt() -> None:
    rows = Rows(load_messages=False)
    agent = agent_of(["1", "2"], context_providers=[rows])

    await agent.run("a")
    await agent.run("b", wait_for_persistence=True)

    assert sent(agent) == ["user: b"]
    assert rows.saved == [["a", "1"], ["b", "2"]]


async def test_what_is_stored_can_be_chosen() -> None:
    inputs = Rows("inputs", load_messages=False, store_outputs=False)
    outputs = Rows("outputs", load_messages=False, store_inputs=False)
    agent = agent_of(["1"], context_providers=[inputs, outputs])

    await agent.run("a", wait_for_persistence=True)

    assert (inputs.saved, outputs.saved) == ([["a"]], [["1"]])


@pytest.mark.behaviour(72)
@pytest.mark.behaviour(100)
@pytest.mark.parametrize("primary", [Rows, InMemoryHistoryProvider], ids=["rows", "memory"])
async def test_an_audit_holds_each_message_once(primary: Callable[[], HistoryProvider]) -> None:
    audit = InMemoryHistoryProvider("audit", load_messages=False, store_context_messages=True)
    memory = Gives("m", says("MEM"))
    agent = agent_of(["1", "2", "3"], context_providers=[primary(), memory, audit])
    session = agent.create_session()

    for text in "abc":
        memory.result = says("MEM")
        await agent.run(text, session=session)
    await agent.drain(session)

    kept = await audit.get_messages(session.session_id, state=session.state["audit"])
    assert texts(kept) == ["MEM", "a", "1", "MEM", "b", "2", "MEM", "c", "3"]


async def test_an_audit_may_look_at_some_sources_only() -> None:
    audit = Rows(
        "audit", load_messages=False, store_context_messages=True, store_context_from=["b"]
    )
    agent = agent_of(["1"], context_providers=[Gives("a", says("A")), Gives("b", says("B")), audit])

    await agent.run("x", wait_for_persistence=True)

    assert audit.saved == [["B", "x", "1"]]


@pytest.mark.behaviour(95)
async def test_equal_turns_are_all_saved() -> None:
    rows = Rows()
    agent = agent_of(["ok"] * 3, context_providers=[rows])
    session = agent.create_session("s")

    for _ in range(3):
        await agent.run("yes", session=session)
    await agent.drain(session)

    assert [row["parts"][0]["text"] for row in rows.rows["s"]] == ["yes", "ok"] * 3


@pytest.mark.behaviour(96)
async def test_a_replaced_history_and_a_users_message_are_saved_once() -> None:
    rows = Rows()
    replaces = Gives("r", ContextResult(messages=[Message.user("R")], replace_messages=True))
    agent = agent_of(["1", "2"], context_providers=[rows, replaces])
    session = agent.create_session("s")

    await agent.run("a", session=session)
    await agent.run("b", session=session)
    await agent.drain(session)

    assert sent(agent) == ["user: R", "user: b"]
    assert rows.saved == [["a", "1"], ["b", "2"]]


@pytest.mark.behaviour(91)
async def test_of_a_run_that_failed_only_what_was_kept_is_saved() -> None:
    rows = Rows()
    script = [BackendError("down"), [TextDelta("ha"), BackendError("gone")]]
    agent = agent_of(script, context_providers=[rows])  # type: ignore[arg-type]
    session = agent.create_session()

    with pytest.raises(BackendError, match="down"):
        await agent.run("a", session=session)
    with pytest.raises(BackendError, match="gone"):
        await agent.run("b", session=session, stream=True).get_final_response()
    await agent.drain(session)

    assert rows.saved == [["b", "ha"]]


async def test_a_call_that_waits_is_saved_with_its_result() -> None:
    rows = Rows()
    delete = tool(lambda: "deleted", name="delete", description="", approval="require")
    agent = agent_of([calls("delete"), "done"], tools=[delete], context_providers=[rows])
    session = agent.create_session()

    await agent.run("go", session=session)
    await agent.run(session=session, approvals={"delete": True}, wait_for_persistence=True)

    assert rows.saved == [["go"], ["delete", "deleted", "done"]]
    assert sent(agent) == ["user: go", "assistant: delete", "tool: deleted"]


@pytest.fixture(params=["file", "sqlite"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], HistoryProvider]:
    """Makes providers that keep their messages in one place."""
    if request.param == "file":
        return lambda: FileHistoryProvider(tmp_path / "talks")
    return lambda: SqliteHistoryProvider(tmp_path / "talks.db")


@pytest.mark.behaviour(68)
async def test_a_history_outlives_its_agent(durable: Callable[[], HistoryProvider]) -> None:
    first = agent_of(["1"], context_providers=[durable()])
    await first.run("a", session=first.create_session("s"), wait_for_persistence=True)

    second = agent_of(["2"], context_providers=[durable()])
    await second.run("b", session=second.create_session("s"))

    assert sent(second) == ["user: a", "assistant: 1", "user: b"]
    assert await durable().get_messages("other") == []
    await durable().save_messages(None, [Message.user("nobody's")])
    assert texts(await durable().get_messages("default")) == ["nobody's"]


async def test_what_is_saved_comes_back_as_it_was(durable: Callable[[], HistoryProvider]) -> None:
    call = ToolCall(id="c", name="look", arguments='{"a": "ü"}')
    said = [
        Message.user("zwei\nZeilen  "),
        Message.assistant("", tool_calls=[call], reasoning="hm"),
        Message.tool("c", "r"),
    ]

    await durable().save_messages("s", said[:1])
    await durable().save_messages("s", said[1:])
    await durable().save_messages("s", [])

    assert await durable().get_messages("s") == said


async def test_what_is_there_is_replaced_as_a_whole_and_only_there(
    durable: Callable[[], HistoryProvider],
) -> None:
    await durable().save_messages("s", [Message.user(text) for text in "abc"])
    await durable().save_messages("other", [Message.user("mine")])
    short = [Message.assistant("(abc)"), Message.user("c")]

    await durable().replace_messages("s", short)
    await durable().save_messages("s", [Message.assistant("d")])

    assert texts(await durable().get_messages("s")) == ["(abc)", "c", "d"]
    assert (await durable().get_messages("s"))[:2] == short
    assert await durable().count("s") == 3
    assert texts(await durable().get_messages("other")) == ["mine"]
    await durable().replace_messages("s", [])
    assert await durable().count("s") == 0
    assert await durable().count("unheard of") == 0


async def test_a_replacement_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = FileHistoryProvider(tmp_path)
    await provider.save_messages("s", [Message.user("a")])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match="No space left"):
            await provider.replace_messages("s", [Message.user("b")])

    assert texts(await provider.get_messages("s")) == ["a"]
    assert files_in(tmp_path) == [provider.path_of("s")]


async def test_a_history_in_memory_is_replaced_where_it_is_kept() -> None:
    audit, state = InMemoryHistoryProvider("audit", load_messages=False), {"messages": [1]}

    await audit.replace_messages(None, [Message.user("a")], state=state)

    assert texts(await audit.get_messages(None, state=state)) == ["a"]
    assert await audit.count(None, state=state) == 1


@pytest.mark.parametrize("history", [Rows(), InMemoryHistoryProvider("memory")])
async def test_a_history_that_can_not_be_replaced_says_so(history: HistoryProvider) -> None:
    assert not history.can_replace
    with pytest.raises(UsageError, match="this history can't be made smaller"):
        await history.replace_messages("s", [], state={})


async def test_a_history_of_ones_own_is_counted_by_what_it_gives() -> None:
    rows = Rows()
    await rows.save_messages("s", [Message.user("a"), Message.user("b")])

    assert await rows.count("s") == 2


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("session_id", ["../x", "A", "a", "a/b", "x" * 400, "é", ".", "con\n"])
async def test_no_session_id_leads_out_of_the_folder_or_to_anothers_file(
    session_id: str, tmp_path: Path
) -> None:
    provider = FileHistoryProvider(tmp_path / "talks")
    others = {"..", "x", "A", "a", "a/b", "y" * 400, "e"} - {session_id}

    await provider.save_messages(session_id, [Message.user("mine")])

    assert [path.parent for path in files_in(tmp_path)] == [tmp_path / "talks"]
    stems = {provider.path_of(other).name.lower() for other in others}
    assert provider.path_of(session_id).name.lower() not in stems


async def test_a_line_that_a_crash_left_is_not_read_and_hurts_no_other(tmp_path: Path) -> None:
    provider = FileHistoryProvider(tmp_path)
    await provider.save_messages("s", [Message.user("a")])
    with provider.path_of("s").open("ab") as file:
        file.write(b'{"role": "us')

    await provider.save_messages("s", [Message.user("b")])

    assert texts(await provider.get_messages("s")) == ["a", "b"]


async def test_sessions_are_saved_beside_each_other(
    durable: Callable[[], HistoryProvider],
) -> None:
    provider = durable()
    agent = agent_of(["ok"] * 20, context_providers=[provider])
    sessions = [agent.create_session(f"s{n}") for n in range(20)]

    await asyncio.gather(*(agent.run(s.session_id, session=s) for s in sessions))
    await agent.drain()

    for session in sessions:
        kept = await provider.get_messages(session.session_id)
        assert texts(kept) == [session.session_id, "ok"]


@pytest.mark.behaviour(73)
def test_older_names_are_the_same_classes() -> None:
    assert BaseContextProvider is ContextProvider
    assert BaseHistoryProvider is HistoryProvider


async def test_a_history_that_can_not_be_loaded_is_noted_and_the_run_goes_on() -> None:
    class Down(Rows):
        async def get_messages(self, *_: Any, **__: Any) -> list[Message]:
            raise OSError("no database")

    agent = agent_of(["hi"], context_providers=[Down()])

    response = await agent.run("hello")

    assert response.diagnostics[0].text == "OSError: no database"
    assert len(requests(agent)) == 1
