"""Stores of sessions: what was saved comes back as it was, and to nobody else."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from agent_context import Agent, AgentSession, ContextProvider, Message
from agent_context.errors import (
    DeadlockError,
    InvalidOptions,
    StoreCorrupt,
    StoreUnavailable,
)
from agent_context.sessions import (
    FileSessionStore,
    MemorySessionStore,
    ScopedSessionStore,
    SessionStore,
    StoreSessionStore,
)
from agent_context.stores.sqlite import SqliteStore
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.support.examples import examples

STORES: dict[str, Callable[[Path], SessionStore]] = {
    "memory": lambda path: MemorySessionStore(),
    "files": FileSessionStore,
    "sqlite": lambda path: StoreSessionStore(SqliteStore(path.with_suffix(".db"))),
    "scoped": lambda path: ScopedSessionStore(FileSessionStore(path), "acme"),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return STORES[request.param](tmp_path / "sessions")


@pytest.fixture
def files(tmp_path: Path) -> FileSessionStore:
    return FileSessionStore(tmp_path / "sessions")


def agent_of(*script: Any, **described: Any) -> Agent:
    return ScriptedBackend(script).as_agent(**described)


def everything_below(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*")}


async def test_a_session_goes_on_where_it_was_saved(store: SessionStore) -> None:
    session = AgentSession("ann", state={"memory": {"seen": ("a", b"b", math.inf)}})
    await agent_of("hello").run("hi", session=session)
    await store.save(session)
    again = agent_of("and again")

    loaded = await store.load("ann")
    assert loaded is not None
    await again.run("still there?", session=loaded)

    said = [message.text for message in await loaded.get_messages()]
    assert said == ["hi", "hello", "still there?", "and again"]
    assert loaded.state == session.state
    assert loaded.session_id == "ann"


async def test_there_is_no_session_before_it_is_saved_nor_after_it_is_deleted(
    store: SessionStore,
) -> None:
    assert await store.load("ann") is None
    assert await store.delete("ann") is False

    await store.save(AgentSession("ann"))
    assert await store.list() == ["ann"]

    assert await store.delete("ann") is True
    assert await store.load("ann") is None
    assert await store.list() == []


async def test_what_was_loaded_is_nobody_elses(store: SessionStore) -> None:
    session = AgentSession("ann", state={"memory": {"items": [1]}})
    await store.save(session)

    session.state["memory"]["items"].append(2)
    one, other = await store.load("ann"), await store.load("ann")
    assert one is not None
    assert other is not None
    one.state["memory"]["items"].append(3)

    assert other.state == {"memory": {"items": [1]}}
    assert (await store.load("ann") or one).state == {"memory": {"items": [1]}}


async def test_the_last_save_wins(store: SessionStore) -> None:
    session = AgentSession("ann")
    for number in range(3):
        session.state["n"] = number
        await store.save(session)

    loaded = await store.load("ann")

    assert loaded is not None
    assert loaded.state == {"n": 2}


async def test_a_save_waits_for_the_end_of_the_run(store: SessionStore) -> None:
    hold = Hold()
    agent, session = agent_of(hold, "hello"), AgentSession("ann")
    running = asyncio.ensure_future(agent.run("hi", session=session))
    await asyncio.to_thread(hold.entered.wait)

    saving = asyncio.ensure_future(store.save(session))
    await asyncio.sleep(0)
    assert await store.list() == []
    hold.release()
    await asyncio.gather(running, saving)

    loaded = await store.load("ann")
    assert loaded is not None
    assert [message.text for message in await loaded_messages(loaded)] == ["hi", "hello"]


async def loaded_messages(session: AgentSession) -> list[Message]:
    await agent_of("next").run("next?", session=session)
    return (await session.get_messages())[:-2]


async def test_a_run_can_not_save_its_own_session(store: SessionStore) -> None:
    refused: list[BaseException] = []

    class Saves(ContextProvider):
        async def after_run(self, *, session: AgentSession, **_: Any) -> None:
            try:
                await store.save(session)
            except DeadlockError as error:
                refused.append(error)

    agent = agent_of("hello", context_providers=[Saves()])

    await agent.run("hi", session=AgentSession("ann"), wait_for_persistence=True)

    assert len(refused) == 1
    assert await store.list() == []


async def test_a_state_that_can_not_be_kept_leaves_what_was_saved(store: SessionStore) -> None:
    session = AgentSession("ann", state={"n": 1})
    await store.save(session)
    session.state["n"] = object()

    with pytest.raises(InvalidOptions, match=r"state\['n'\]: a object can't be kept"):
        await store.save(session)

    loaded = await store.load("ann")
    assert loaded is not None
    assert loaded.state == {"n": 1}


async def test_state_of_any_size_and_text_of_any_kind_is_kept(store: SessionStore) -> None:
    state = {"big": 2**100, "half": "\ud800", "dict": {"type": "message", "__type__": "x"}}

    await store.save(AgentSession("\ud800 id", state=state))

    loaded = await store.load("\ud800 id")
    assert loaded is not None
    assert loaded.state == state
    assert await store.list() == ["\ud800 id"]


IDS = st.text(max_size=200) | st.sampled_from(
    ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "con", "com1", "A", "a", "x" * 10_000]
)  # fmt: skip


@pytest.mark.behaviour(106)
@given(ids=st.lists(IDS, unique=True, min_size=1, max_size=4))
@example(ids=["../x", "x", "X", "..\\x", "x" * 10_000, "x" * 10_001])
@example(ids=["é", "e\u0301", "É"])
@examples(allow=[HealthCheck.function_scoped_fixture])
async def test_every_id_has_a_file_of_its_own_in_the_directory(
    tmp_path_factory: pytest.TempPathFactory, ids: list[str]
) -> None:
    above = tmp_path_factory.mktemp("above")
    store = FileSessionStore(above / "sessions")

    for number, session_id in enumerate(ids):
        await store.save(AgentSession(session_id, state={"n": number}))

    names = [path.name for path in (above / "sessions").iterdir()]
    assert len({name.lower() for name in names}) == len(ids)
    assert all(len(name) < 200 for name in names)
    assert {path.name for path in above.iterdir()} == {"sessions"}
    assert await store.list() == sorted(ids)
    for number, session_id in enumerate(ids):
        loaded = await store.load(session_id)
        assert loaded is not None
        assert loaded.state == {"n": number}


def test_a_name_that_means_a_device_elsewhere_is_not_used(files: FileSessionStore) -> None:
    assert files.path_of("con").name.startswith("~")
    assert files.path_of("console").name == "console.session"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b'"agent_context"', b'"something"', 1),
        lambda content: content.replace(b'"type"', b'"kind"', 1),
        lambda content: content.replace(b"incremental", b"nowhere", 1),
        lambda content: content.replace(b'"ann"', b'"bob"', 1),
        lambda content: content.replace(b'"session_id":"ann"', b'"session_id":"bob"', 1),
        lambda content: b"\xff" + content,
    ],
)
async def test_a_damaged_file_is_put_aside_and_reported(
    files: FileSessionStore, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    session = AgentSession("ann")
    await agent_of("hello").run("hi", session=session)
    await files.save(session)
    path = files.path_of("ann")
    damaged = damage(path.read_bytes())
    path.write_bytes(damaged)

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(StoreCorrupt, match=r"can't be read: .*; it was put aside") as raised,
    ):
        await files.load("ann")

    (aside,) = path.parent.iterdir()
    assert aside.name in str(raised.value)
    assert aside.name in caplog.text
    assert aside.read_bytes() == damaged
    assert await files.load("ann") is None
    assert await files.list() == []


async def test_what_is_damaged_in_a_scope_is_put_aside_too(files: FileSessionStore) -> None:
    acme = ScopedSessionStore(files, "acme")
    await acme.save(AgentSession("ann"))
    (path,) = files.path_of("").parent.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"type"', b'"kind"'))

    with pytest.raises(StoreCorrupt, match="it was put aside as"):
        await acme.load("ann")

    assert await acme.load("ann") is None


async def test_a_file_of_a_later_format_stays_where_it_is(files: FileSessionStore) -> None:
    await files.save(AgentSession("ann"))
    path = files.path_of("ann")
    path.write_bytes(path.read_bytes().replace(b'"agent_context": 1', b'"agent_context": 2'))

    with pytest.raises(StoreCorrupt, match="format 2 of sessions is not known; this reads 1"):
        await files.load("ann")

    assert path.exists()


async def test_one_damaged_file_does_not_hide_the_others(
    files: FileSessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    await files.save(AgentSession("ann"))
    files.path_of("bob").write_bytes(b"?\n")
    (files.path_of("bob").parent / "notes.txt").write_text("not one of ours")

    with caplog.at_level(logging.WARNING):
        assert await files.list() == ["ann"]

    assert "bob.session is left out" in caplog.text


async def test_a_link_in_the_place_of_a_file_is_neither_read_nor_written(
    files: FileSessionStore, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    files.path_of("ann").symlink_to(outside)

    with pytest.raises(StoreUnavailable, match="link"):
        await files.load("ann")
    with pytest.raises(StoreUnavailable):
        await files.save(AgentSession("ann"))

    assert outside.read_text() == "secret"


async def test_a_disk_that_is_full_leaves_what_was_saved(
    files: FileSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = AgentSession("ann", state={"n": 1})
    await files.save(session)
    session.state["n"] = 2

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match="No space left"):
            await files.save(session)

    loaded = await files.load("ann")
    assert loaded is not None
    assert loaded.state == {"n": 1}
    assert everything_below(files.path_of("ann").parent) == {"ann.session"}


def test_a_directory_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreUnavailable, match="no sessions can be kept in"):
        FileSessionStore(tmp_path / "file" / "sessions")


KILLED_WHILE_SAVING = """
import asyncio, sys
from agent_context import AgentSession
from agent_context.sessions import FileSessionStore

async def main():
    store = FileSessionStore(sys.argv[1])
    print("ready", flush=True)
    for number in range(1_000_000):
        session = AgentSession("ann", state={"n": number, "filler": "x" * 200_000})
        await store.save(session)

asyncio.run(main())
"""


def test_whoever_is_killed_while_saving_leaves_a_whole_session(
    files: FileSessionStore,
) -> None:
    directory = files.path_of("").parent
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_SAVING, directory], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = -1
        while seen < 20:  # it is read while it is written, too
            loaded = asyncio.run(files.load("ann"))
            seen = seen if loaded is None else loaded.state["n"]
        process.kill()

    loaded = asyncio.run(files.load("ann"))

    assert loaded is not None
    assert loaded.state["n"] >= seen
    assert asyncio.run(files.list()) == ["ann"]


NAMES = st.text(min_size=1, max_size=6) | st.sampled_from(["a", "1:a/", "a/b", "../x", ":"])


@pytest.mark.behaviour(106)
@given(one=st.tuples(NAMES, NAMES | st.just("")), other=st.tuples(NAMES, NAMES | st.just("")))
@example(one=("a", "b::c"), other=("a::b", "c"))
@example(one=("a", "1:b/c"), other=("a1:b/", "c"))
async def test_no_tenant_reaches_a_session_of_another(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    inner = MemorySessionStore()
    mine, theirs = ScopedSessionStore(inner, one[0]), ScopedSessionStore(inner, other[0])

    await mine.save(AgentSession(one[1], state={"whose": "mine"}))
    same = one == other
    assert (await theirs.load(other[1]) is not None) == same
    await theirs.save(AgentSession(other[1], state={"whose": "theirs"}))

    loaded = await mine.load(one[1])
    assert loaded is not None
    assert loaded.state == {"whose": "theirs" if same else "mine"}
    assert set(await mine.list()) == {one[1], *([other[1]] if one[0] == other[0] else [])}
    if not same:
        assert await theirs.delete(other[1]) is True
        assert await mine.load(one[1]) is not None


@pytest.mark.behaviour(106)
async def test_a_tenants_session_is_saved_where_it_is_loaded_from(tmp_path: Path) -> None:
    files = FileSessionStore(tmp_path / "sessions")
    acme, rival = ScopedSessionStore(files, "acme"), ScopedSessionStore(files, "rival")
    session = AgentSession("../x")
    await agent_of("hello").run("hi", session=session)

    await acme.save(session)

    loaded = await acme.load("../x")
    assert loaded is not None
    assert loaded.session_id == "../x"
    assert await rival.load("../x") is None
    assert await files.load("../x") is None
    assert await rival.delete("../x") is False
    assert {name.split("/")[0] for name in everything_below(tmp_path)} == {"sessions"}


def test_nobodys_scope_is_refused() -> None:
    with pytest.raises(InvalidOptions, match="tenant: it is empty"):
        ScopedSessionStore(MemorySessionStore(), "")


async def test_a_store_of_conversations_keeps_sessions_beside_them(tmp_path: Path) -> None:
    database = SqliteStore(tmp_path / "talks.db")
    sessions = StoreSessionStore(database)
    ids = ["ann", "../x", "Ann", "half \ud800", "", "x" * 5_000, "\0"]
    async with agent_of("hello", store=database) as agent:
        await agent.run("hi", session=agent.create_session("ann"))

    for id_ in ids:
        await sessions.save(AgentSession(id_, state={"id": id_}))
    deleted = await sessions.delete("ann")
    await sessions.save(AgentSession("ann", state={"again": True}))
    database.close()

    database = SqliteStore(tmp_path / "talks.db")
    sessions = StoreSessionStore(database)
    loaded = [await sessions.load(id_) for id_ in ids]
    assert deleted
    assert await sessions.list() == sorted(ids)
    assert [each and each.session_id for each in loaded] == ids
    assert loaded[0] is not None
    assert loaded[0].state == {"again": True}
    assert database.info("ann") is not None
    database.close()
