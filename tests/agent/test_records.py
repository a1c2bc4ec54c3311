"""What is kept of runs beside their conversation, and what a caller gets when that fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_context import AgentSession, ContextProvider, HistoryProvider, Message, Send, SendStream
from agent_context.agent.records import SessionRecords
from agent_context.errors import Fenced, StoreError, StoreUnavailable
from agent_context.messages import Completion
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store, Write
from agent_context.tools import tool
from tests.agent.conftest import agent_of, calls, texts


class FailsAt(MemoryStore):
    """A store that can't keep what holds a word."""

    def __init__(self, word: str, error: StoreError) -> None:
        super().__init__()
        self._word, self._error = word.encode(), error

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        if any(self._word in entry.payload for write in batch for entry in write.entries):
            return [self._error for _ in batch]
        return super().write(batch)


UNKEPT = [StoreError("the disk is full"), StoreUnavailable("locked"), Fenced("taken")]


@tool
def look() -> str:
    """Look around."""
    return "seen"


@pytest.mark.parametrize("error", UNKEPT)
async def test_an_answer_that_is_not_kept_reaches_its_caller(error: StoreError) -> None:
    agent = agent_of([calls("look"), "the answer"], tools=[look], store=FailsAt("answer", error))

    response = await agent.run("go", session=agent.create_session())

    assert response.text == "the answer"
    assert texts(response.messages) == ["look", "seen", "the answer"]
    [diagnostic] = response.diagnostics
    assert (diagnostic.source, diagnostic.phase) == ("store", "store_answer")
    assert isinstance(diagnostic.error, type(error))


async def test_so_does_a_streamed_one() -> None:
    agent = agent_of(["the answer"], store=FailsAt("answer", StoreError("the disk is full")))
    stream = agent.run("go", session=agent.create_session(), stream=True)

    text = "".join([update.text async for update in stream])

    assert text == stream.response.text == "the answer"
    assert [d.source for d in stream.response.diagnostics] == ["store"]


async def test_what_is_not_kept_before_the_answer_ends_the_run() -> None:
    store = FailsAt("tool_calls", StoreError("the disk is full"))
    agent = agent_of([calls("look"), "the answer"], tools=[look], store=store)

    with pytest.raises(StoreError, match="the disk is full"):
        await agent.run("go", session=agent.create_session())


async def test_whoever_sends_finds_the_answer_in_the_error() -> None:
    store = FailsAt("answer", StoreError("the disk is full"))
    agent = agent_of(["hello", "the answer", "the answer"], store=store)
    session = agent.create_session()
    await agent.run("hi", session=session)
    conversation = session.conversation
    assert conversation is not None

    with pytest.raises(StoreError) as sent:
        await conversation.aask(Send(messages=[Message.user("go")]))

    assert isinstance(sent.value.completion, Completion)
    assert sent.value.completion.message.text == "the answer"


class Keeps(ContextProvider):
    """Has a value of its own kept."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__(name)
        self.value = value

    async def before_run(self, *, state: dict[str, Any], **_: Any) -> None:
        state.setdefault("value", self.value)


class _Odd:
    def __eq__(self, other: object) -> bool:
        raise ValueError("compare me not")

    __hash__ = None  # type: ignore[assignment]


ODD = {
    "object": object(),
    "incomparable": _Odd(),
    "deep": {"a": [lambda: 1]},
    "long": 10**5_000,
    "key": {(1, 2): object()},
}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
async def test_what_one_provider_cannot_have_kept_costs_the_others_nothing(
    odd: object, kind: str, tmp_path: Path
) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "x.db")
    fine = {"int": 10**30, "text": "half \ud800", "tuple": (1, b"2")}
    before, after = Keeps("before", fine), Keeps("after", [1])
    agent = agent_of(["1"], context_providers=[before, Keeps("odd", odd), after], store=store)
    response = await agent.run("go", session=agent.create_session("s"))
    await agent.drain()

    session = AgentSession("s")
    await SessionRecords(store, session).load_state()

    assert [(d.source, d.phase) for d in response.diagnostics] == [("odd", "save_state")]
    assert session.provider_state("before") == {"value": fine}
    assert session.provider_state("after") == {"value": [1]}


class Refuses(HistoryProvider):
    """Can't keep anything."""

    async def get_messages(self, *_: Any, **__: Any) -> list[Message]:
        return []

    async def save_messages(self, *_: Any, **__: Any) -> None:
        raise OSError("no space left")


@pytest.mark.parametrize("waits", [True, False])
async def test_a_history_that_keeps_nothing_shows_in_the_diagnostics(*, waits: bool) -> None:
    agent = agent_of(["1"], context_providers=[Refuses("refuses")])

    response = await agent.run("go", wait_for_persistence=waits)
    await agent.drain()

    [diagnostic] = response.diagnostics
    assert (diagnostic.source, diagnostic.phase) == ("refuses", "after_run")
    assert "no space left" in diagnostic.text


async def test_a_stream_whose_answer_is_not_kept_names_it(tmp_path: Path) -> None:
    store = FailsAt("answer", StoreError("the disk is full"))
    agent = agent_of(["hello", "the answer"], store=store)
    session = agent.create_session()
    await agent.run("hi", session=session)
    assert session.conversation is not None
    stream = await session.conversation.aask(SendStream(messages=[Message.user("go")]))

    with pytest.raises(StoreError) as failed:
        _ = [event async for event in stream]

    assert failed.value.completion.message.text == "the answer"


async def test_a_store_that_keeps_no_state_shows_in_the_diagnostics() -> None:
    class Full(MemoryStore):
        def put_attachment(self, conversation_id: str, name: str, payload: bytes | None) -> None:
            raise OSError("no space left")

    agent = agent_of(["1"], context_providers=[Keeps("keeps", 1)], store=Full())

    response = await agent.run("go", session=agent.create_session())
    await agent.drain()

    assert response.text == "1"
    assert [(d.source, d.phase) for d in response.diagnostics] == [("store", "save_state")]
