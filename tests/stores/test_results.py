"""Long tool results outlive the process in the store of their conversation."""

from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest

from agent_context.errors import UnknownConversation
from agent_context.stores.memory import MemoryStore
from agent_context.stores.results import StoredResults
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import Limits, Toolbox, tool
from tests.support.toolbox import call


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    made = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "c.db")
    with closing(made):
        made.claim("k")
        yield made


async def test_a_result_is_read_on_by_another_toolbox(store: Store) -> None:
    long = tool(lambda: "ü" * 100, name="long")
    first = Toolbox([long], limits=Limits(max_result=10), keeper=StoredResults(store, "k"))
    await first.run([call("long")])

    later = Toolbox([long], limits=Limits(max_result=10), keeper=StoredResults(store, "k"))
    outcome = await later.run([call("read_tool_result", "c2", id="c1", offset=95)])

    assert outcome.results[0].text == "üüüüü\n[characters 95 to 100 of 100]"


async def test_what_was_never_kept_is_not_there(store: Store) -> None:
    assert await StoredResults(store, "k").fetch("c1") is None


async def test_an_unknown_conversation_keeps_nothing(store: Store) -> None:
    with pytest.raises(UnknownConversation):
        await StoredResults(store, "nowhere").keep("c1", "text")
