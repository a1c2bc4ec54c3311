"""Every message of a log is found by itself, with the same ranking whatever keeps it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent_context import AgentContext, Append, Compress, Extend, FromJsonl, Send
from agent_context.compression import SlidingWindow
from agent_context.messages import Message
from agent_context.protocol import SearchHistory, ToJsonl, UseBackend
from agent_context.ref import ContextRef
from agent_context.stores import message_search
from agent_context.stores.memory import MemoryStore
from agent_context.stores.message_search import extract_text, message_texts, rank_entries
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import ScriptedBackend
from tests.stores.material import entry, write

TALK = [Message.user(f"note {number} about the {word}") for number, word in enumerate(
    ["garden", "kitchen", "engine", "harbour", "library", "museum"] * 100)]  # fmt: skip
TALK[371] = Message.user("The parrots are called Polly and Max.")

Start = Callable[[Store], ContextRef]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[ContextRef] = []

    def start(store: Store) -> ContextRef:
        started.append(AgentContext.start(ScriptedBackend(["Done."] * 9), store=store, id="c"))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "s.db")
    with closing(store):
        yield store


def found(ref: ContextRef, text: str, limit: int = 10) -> list[str]:
    return [each.message.text for each in ref.ask(SearchHistory(text, limit))]


def test_each_message_of_one_extend_is_found(store: Store, start: Start) -> None:
    ref = start(store)
    ref.ask(Extend(TALK))

    for place in (0, 1, 300, 599):
        assert found(ref, f"note {place}", 1) == [TALK[place].text]
    assert found(ref, "what is the parrot called?", 1) == [TALK[371].text]


def test_each_message_of_an_import_is_found(store: Store, start: Start) -> None:
    source = AgentContext.start(ScriptedBackend())
    source.ask(Extend(TALK))
    ref = start(store)
    ref.ask(FromJsonl(source.ask(ToJsonl())))
    source.stop()

    assert found(ref, "parrot", 1) == [TALK[371].text]
    assert found(ref, "note 599", 1) == [TALK[599].text]


def test_the_best_messages_of_an_entry_come_first(store: Store, start: Start) -> None:
    ref = start(store)
    said = ["red", "nothing", "more", "a car", "else", "there", "the red car", "is"]
    ref.ask(Extend([Message.user(text) for text in said]))

    assert found(ref, "red car", 1) == ["the red car"]
    assert set(found(ref, "red car")) == {"red", "a car", "the red car"}


def test_only_what_was_said_is_found(store: Store, start: Start) -> None:
    ref = start(store)
    ref.ask(Send(messages=[Message.user("What is two and two?")]))
    ref.ask(UseBackend(ScriptedBackend(["x"])))
    ref.ask(Append(Message.user("Thanks")))

    for word in ("stop", "assistant", "scripted", "appended", "content"):
        assert found(ref, word) == []
        assert list(store.search("c", word)) == []
    assert found(ref, "done") == ["Done."]


def test_messages_tell_when_and_by_what_they_came(store: Store, start: Start) -> None:
    ref = start(store)
    ref.ask(Append(Message.user("before")))
    ref.ask(Extend([Message.user("parrot"), Message.user("other")]))

    [remark] = ref.ask(SearchHistory("parrot"))

    assert (remark.conversation_id, remark.seq, remark.kind) == ("c", 2, "extended")
    assert remark.timestamp > 1.7e9


def test_what_is_said_later_and_what_a_compression_took_is_found(
    store: Store, start: Start
) -> None:
    ref = start(store)
    ref.ask(Extend(TALK[:20]))
    assert found(ref, "parrot") == []

    ref.ask(Append(Message.user("My parrot is Polly")))
    ref.ask(Extend(TALK[20:40]))
    ref.ask(Compress(SlidingWindow(2)))

    assert found(ref, "parrots") == ["My parrot is Polly"]


def test_stores_rank_alike(tmp_path: Path) -> None:
    texts = [
        f"{'red ' * (n % 4)}{'car ' * (n % 3)}{'house ' * (n % 7)}number {n}" for n in range(60)
    ]
    ranked: list[list[int]] = []
    with closing(MemoryStore()) as memory, closing(SqliteStore(tmp_path / "s.db")) as sqlite:
        for store in (memory, sqlite):
            store.claim("other")
            store.write([write("other", 0, "red car", "car")])
            store.claim("a")
            store.write([write("a", 0, *texts)])
            ranked.append([each.seq for each in store.search("a", "a red car", limit=20)])
    entries = [entry(seq, text) for seq, text in enumerate(texts, start=1)]
    ranked.append([each.seq for each in rank_entries(entries, "a red car", limit=20)])

    assert ranked[0] == ranked[1] == ranked[2]
    assert len(ranked[0]) == 20


def test_messages_of_a_large_entry_are_found_without_reading_it_again(start: Start) -> None:
    store = MemoryStore()
    ref = start(store)
    ref.ask(Extend([Message.user(f"long {'x' * 1000} {number}") for number in range(200)]))

    assert found(ref, "long 150", 1) == [f"long {'x' * 1000} 150"]


def test_what_was_deleted_is_known_no_more() -> None:
    with closing(MemoryStore()) as store:
        store.claim("a")
        store.write([write("a", 0, "secret")])
        assert store.search("a", "secret")
        [index] = message_search._indexes_of(store)._indexes.values()

        store.delete("a")
        del index
        gc.collect()

        assert not message_search._indexes_of(store)._indexes


def test_what_was_searched_longest_ago_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_search, "_MOST_TERMS", 10)
    with closing(MemoryStore()) as store:
        for name in ("a", "b", "c"):
            store.claim(name)
            store.write([write(name, 0, "one two three four five six")])
            assert store.search(name, "six")

        assert list(message_search._indexes_of(store)._indexes) == ["c"]
        assert store.search("a", "six")


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"message":{"id":"i","role":"user","content":"hi","finish_reason":"stop"}}', ["hi"]),
        (b'{"messages":[{"content":[{"type":"text","text":"a"}]},{"content":""}]}', ["a", ""]),
        (b'{"immutable":[{"content":"s"}],"compressed":[],"incremental":[{"content":"q"}]}',
         ["s", "q"]),
        (b'{"compressed":[[0,3],{"content":"sum"}],"incremental":[[2,4]]}', ["sum"]),
        (b'{"message":{"content":[{"type":"file","text":{"a":1}},"bare",{"text":"b"}]}}',
         ["bare\nb"]),
        (b'{"text": "of another program"}', ["of another program"]),
        (b'{"to": 4}', []),
        (b"no json", []),
    ],
)  # fmt: skip
def test_the_texts_of_an_entry(payload: bytes, expected: list[str]) -> None:
    assert message_texts(payload) == expected


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"content": "hello"}', "hello"),
        (b'{"id": "m1", "role": "user", "message": {"content": ["a", {"text": "b"}]}}', "a\nb"),
        (b'{"n": 1, "none": null, "list": []}', ""),
        (b'{"content": "\\ud800 lone"}', "? lone"),
        (b"no json", ""),
        (b"\xff", ""),
    ],
)
def test_the_text_of_a_payload(payload: bytes, expected: str) -> None:
    assert extract_text(payload) == expected


def test_entries_with_more_of_the_words_come_first_and_then_newer_ones() -> None:
    entries = [entry(1, "red"), entry(2, "red car"), entry(3, "car"), entry(4, "none")]

    assert [each.seq for each in rank_entries(entries, "red CAR", limit=10)] == [2, 3, 1]
    assert [each.seq for each in rank_entries(entries, "red car", limit=1)] == [2]
