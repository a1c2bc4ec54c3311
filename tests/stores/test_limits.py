"""What is too long or too large is refused before anything is changed, by every store alike."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from agent_context import AgentContext, Append, Extend, Incremental, Message, Send
from agent_context.errors import InvalidMessage, InvalidOptions, StoreError
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Entry, Snapshot, Store, Write
from agent_context.stores.write_check import MAX_NAME_BYTES
from agent_context_backends.scripted import ScriptedBackend
from tests.stores.material import entry, texts, write
from tests.support.postgres import new_store

LONGEST = "\N{GREEK SMALL LETTER PI}" * (MAX_NAME_BYTES // 2)
TOO_LONG = (LONGEST + "x", "k" * 8_000, "k" * 1_000_000)
LIMIT = 10_000
"""Bytes of a payload, in these tests."""


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Store]:
    if request.param == "postgres":
        with new_store() as shared:
            yield shared
        return
    store: Store = (
        MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.db")
    )
    yield store
    store.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_context.stores.write_check.MAX_PAYLOAD_BYTES", LIMIT)
    monkeypatch.setattr("agent_context.stores.write_check.MAX_DRAFT_BYTES", LIMIT)
    monkeypatch.setattr("agent_context.stores.write_check.MAX_SNAPSHOT_BYTES", LIMIT)
    monkeypatch.setattr("agent_context._actor.journal.MAX_PAYLOAD_BYTES", LIMIT)
    monkeypatch.setattr("agent_context._actor.state.MAX_PAYLOAD_BYTES", LIMIT)


def test_the_longest_names_are_kept(store: Store) -> None:
    epoch = store.claim(LONGEST).epoch
    put = Write(
        conversation_id=LONGEST, epoch=epoch, head=0, entries=(entry(1, key="\x1f" + LONGEST),)
    )

    assert list(store.write([put])) == [None]

    store.put_attachment(LONGEST, LONGEST, b"x")
    assert store.find_by_key(LONGEST, "\x1f" + LONGEST) is not None
    assert store.get_attachment(LONGEST, LONGEST) == b"x"


@pytest.mark.parametrize("name", TOO_LONG, ids=len)
def test_an_id_that_is_too_long_is_refused(store: Store, name: str) -> None:
    with pytest.raises(InvalidOptions, match=r"conversation id .* are allowed") as raised:
        store.claim(name)

    assert len(str(raised.value)) < 300
    assert store.info(name) is None


@pytest.mark.parametrize("name", TOO_LONG, ids=len)
def test_an_attachment_with_too_long_a_name_is_refused(store: Store, name: str) -> None:
    store.claim("a")

    with pytest.raises(InvalidOptions, match=r"attachment .* are allowed"):
        store.put_attachment("a", name, b"x")


@pytest.mark.parametrize("name", TOO_LONG[1:], ids=len)
@pytest.mark.parametrize("field", ["key", "kind"])
def test_an_entry_with_too_long_a_name_is_refused_alone(
    store: Store, name: str, field: str
) -> None:
    store.claim("a")
    store.claim("b")
    long = Entry(1, name, b"{}", 1.0) if field == "kind" else entry(1, key=name)
    bad = Write(conversation_id="a", epoch=1, head=0, entries=(long,))

    refused, kept = store.write([bad, write("b", 0, "one")])

    assert isinstance(refused, StoreError)
    assert "are allowed" in str(refused)
    assert kept is None
    assert (texts(store, "a"), texts(store, "b")) == ([], ["one"])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("draft", [False, True])
def test_what_is_too_large_is_refused_alone(store: Store, draft: bool) -> None:
    store.claim("a")
    store.claim("b")
    text = "x" * (LIMIT + 1)
    bad = write("a", 0, "one", draft=text.encode()) if draft else write("a", 0, text)

    refused, kept = store.write([bad, write("b", 0, "one")])

    assert isinstance(refused, StoreError)
    assert "10,000 are allowed" in str(refused)
    assert kept is None


@pytest.mark.usefixtures("small")
def test_snapshots_attachments_and_metadata_have_a_limit(store: Store) -> None:
    store.claim("a")
    large = b"x" * (LIMIT + 1)

    with pytest.raises(StoreError, match=r"its snapshot: .* are allowed"):
        store.save_snapshot("a", 1, Snapshot(0, 1, large))
    with pytest.raises(InvalidOptions, match=r"attachment 'x': .* are allowed"):
        store.put_attachment("a", "x", large)
    with pytest.raises(InvalidOptions, match=r"metadata: .* are allowed"):
        store.set_metadata("a", {"x": large.decode()})


@pytest.mark.parametrize("ask", [Append, lambda message, key: Send(messages=[message], key=key)])
@pytest.mark.parametrize("key", TOO_LONG, ids=len)
def test_a_key_that_is_too_long_changes_nothing(
    ask: Callable[..., Append | Send], key: str, store: Store
) -> None:
    ref = AgentContext.start(ScriptedBackend([]), store=store, id="a")

    with pytest.raises(InvalidOptions, match=r"key .* are allowed"):
        ref.ask(ask(Message.user("hi"), key=key))

    ref.ask(Append(Message.user("fine")))
    assert [message.text for message in ref.ask(Incremental())] == ["fine"]
    ref.stop()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "ask",
    [
        Append,
        lambda large: Extend([Message.user("x"), large]),
        lambda large: Extend([Message.user("x" * (LIMIT // 2))] * 3),
        lambda large: Send(messages=[large]),
        lambda large: Send(messages=[Message.user("x" * (LIMIT // 2))] * 3),
    ],
)
def test_a_message_that_is_too_large_changes_nothing(
    ask: Callable[[Message], Append | Extend | Send], store: Store
) -> None:
    ref = AgentContext.start(ScriptedBackend([]), store=store, id="a")
    large = Message.user("x" * (LIMIT + 1))

    with pytest.raises(InvalidMessage, match="10,000 are allowed"):
        ref.ask(ask(large))

    ref.ask(Append(Message.user("fine")))
    assert [message.text for message in ref.ask(Incremental())] == ["fine"]
    ref.stop()
