"""How often a run passes work from one thread to another: each time costs a wake-up."""

from __future__ import annotations

import asyncio
from asyncio.base_events import BaseEventLoop
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from agent_context import tool
from agent_context._runtime import event_loop, io_loop
from agent_context._runtime.executor import ElasticExecutor
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.writer import GroupCommitWriter
from tests.agent.conftest import agent_of, calls

HAND_OVERS = (
    (BaseEventLoop, "call_soon_threadsafe"),
    (ElasticExecutor, "submit"),
    (GroupCommitWriter, "put"),
)
"""All the ways from one thread to another."""


@tool
async def look() -> str:
    """Look."""
    return "blue"


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A line for each time that work goes to another thread."""
    io_loop().shutdown()
    monkeypatch.setattr(event_loop, "_new_loop", asyncio.new_event_loop)  # one that can be watched
    seen: list[str] = []
    for kind, name in HAND_OVERS:
        monkeypatch.setattr(kind, name, _noted(seen, name, getattr(kind, name)))
    yield seen
    io_loop().shutdown()


def _noted(seen: list[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        seen.append(name)
        return method(*args, **named)

    return call


def test_a_run_with_a_tool_over_sqlite_changes_threads_14_times(
    tmp_path: Path, passed_on: list[str]
) -> None:
    store = SqliteStore(tmp_path / "talks.db")
    agent = agent_of(cycle([calls("look"), "It is blue."]), tools=[look], store=store)

    async def count_of_each_run() -> list[int]:
        session, counts = agent.create_session("s"), list[int]()
        for _ in range(5):
            passed_on.clear()
            await agent.run("Which colour?", session=session)
            counts.append(len(passed_on))
            await agent.drain()
        await agent.close()
        return counts

    # Something else in the process may pass something on meanwhile.
    assert min(asyncio.run(count_of_each_run())) <= 14
