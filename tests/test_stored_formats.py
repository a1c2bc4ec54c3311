"""What version 0.1 wrote is still read: logs, snapshots, running turns, sessions, lines, errors."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import pickle
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_context import AgentContext, ContextRef, errors
from agent_context.agent import Agent
from agent_context.messages import Message
from agent_context.protocol import Append, FromJsonl, Incremental, Messages, ToJsonl
from agent_context.providers.file_history import FileHistoryProvider
from agent_context.providers.sqlite_history import SqliteHistoryProvider
from agent_context.sessions.files import FileSessionStore
from agent_context.stores.sqlite import SqliteStore
from agent_context_backends.scripted import ScriptedBackend

DATA = Path(__file__).parent / "data/formats_0_1"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text("utf-8"))
KINDS = {
    "appended", "backend_changed", "begun", "cache_missed", "cancelled", "cleared", "compressed",
    "extended", "inserted", "loaded", "popped", "prefix_broken", "removed", "restored", "retained",
    "rewound", "turn_failed", "updated",
}  # fmt: skip


def unpack(name: str, directory: Path) -> Path:
    path = directory / f"{name}.db"
    path.write_bytes(gzip.decompress((DATA / f"{name}.db.gz").read_bytes()))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(unpack("conversations", tmp_path))
    yield store
    store.close()


def reopen(store: SqliteStore, name: str) -> ContextRef:
    return AgentContext.start(ScriptedBackend(), store=store, id=name)


def texts(ref: ContextRef) -> list[str]:
    return [message.text for message in ref.ask(Incremental())]


def test_the_file_holds_every_kind_of_entry(tmp_path: Path) -> None:
    connection = sqlite3.connect(unpack("conversations", tmp_path))
    assert {kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM event")} == KINDS
    assert connection.execute("SELECT count(*) FROM snapshot").fetchone()[0] > 0
    connection.close()


@pytest.mark.parametrize(
    "name",
    ["edits", "compressed", "loaded", "cleared", "failed", "missed", "long", "agent-session"],
)
def test_a_log_makes_the_conversation_that_it_made_then(store: SqliteStore, name: str) -> None:
    assert reopen(store, name).ask(ToJsonl()) == EXPECTED[name]


def test_a_fork_finds_its_parent(store: SqliteStore) -> None:
    assert reopen(store, EXPECTED["fork"]["id"]).ask(ToJsonl()) == EXPECTED["fork"]["jsonl"]


def test_an_answer_is_found_by_its_key(store: SqliteStore) -> None:
    ref = reopen(store, "edits")
    held = {message.id for message in ref.ask(Messages())}

    assert ref.ask(Append(Message.user("one"), key="k-append")) in held
    assert ref.ask(ToJsonl()) == EXPECTED["edits"]


def test_a_turn_that_was_running_is_closed_by_its_policy(tmp_path: Path) -> None:
    store = SqliteStore(unpack("dying", tmp_path))
    assert texts(reopen(store, "dying")) == EXPECTED["dying"]
    store.close()


def test_a_turn_that_was_closed_stays_closed(tmp_path: Path) -> None:
    store = SqliteStore(unpack("lost", tmp_path))
    assert reopen(store, "dying").ask(ToJsonl()) == EXPECTED["lost"]
    store.close()


async def test_an_agent_goes_on_with_its_state_and_long_results(store: SqliteStore) -> None:
    agent = Agent(ScriptedBackend(["fine"]), store=store)
    session = agent.create_session("agent-session")

    await agent.run("how are you?", session=session, wait_for_persistence=True)

    assert session.state["mine"] == {"n": 1, "when": "now"}
    kept = store.get_attachment("agent-session", "result/b1")
    assert kept is not None
    assert kept.decode() == "abc " * 20_000


async def test_a_session_file_is_loaded(tmp_path: Path) -> None:
    shutil.copytree(DATA / "sessions", tmp_path / "sessions")
    session = await FileSessionStore(tmp_path / "sessions").load("file-session")
    assert session is not None

    await Agent(ScriptedBackend(["next"])).run("go on", session=session)

    told = [[message.role.value, message.text] for message in await session.get_messages()]
    assert told[:-2] == EXPECTED["file-session"]
    assert session.state["p"]["x"] == [1, 2]
    assert session.state["p"]["m"].text == "kept"


async def test_histories_are_read(tmp_path: Path) -> None:
    shutil.copytree(DATA / "history", tmp_path / "history")
    await asyncio.to_thread(shutil.copy, DATA / "history.db", tmp_path / "history.db")

    lines = await FileHistoryProvider(tmp_path / "history").get_messages("talk")
    rows = await SqliteHistoryProvider(tmp_path / "history.db").get_messages("talk")

    assert [message.text for message in lines] == ["u1", "a1", "res"]
    assert lines[1].tool_calls[0].arguments == '{"where":"here"}'
    assert [message.text for message in rows] == ["u1", "a1"]


def test_lines_come_out_as_they_went_in() -> None:
    text = (DATA / "conversation.jsonl").read_text("utf-8")
    ref = AgentContext.start(ScriptedBackend())

    ref.ask(FromJsonl(text))

    assert ref.ask(ToJsonl()) == text


@pytest.mark.parametrize("name", json.loads((DATA / "errors.json").read_text("utf-8")))
def test_a_pickled_error_is_that_error(name: str) -> None:
    pickled: str = json.loads((DATA / "errors.json").read_text("utf-8"))[name]

    error = pickle.loads(base64.b64decode(pickled))

    assert type(error) is getattr(errors, name)
    assert pickle.loads(pickle.dumps(error)).__dict__ == error.__dict__
