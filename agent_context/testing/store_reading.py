"""What every store must answer to those who read, and to many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from threading import Barrier, Event, Thread

from agent_context.errors import Fenced, InvalidOptions, StoreUnavailable, UnknownConversation
from agent_context.stores.store import Entry, FeedEntry, HealthCheck, Store, Write
from agent_context.testing._store_helpers import StoreTools, error_of, facts, only, texts_of, write

__all__ = ["ReadingContract"]

ODD_QUERIES = (
    "",
    " ",
    '"',
    "'; drop table event; --",
    "a AND",
    "NEAR(",
    "a* OR -b",
    "%_\\",
    "content:hello",
    "\0",
    "\ud800",
    "(((",
    "^",
    "👍🏽",
    "x" * 100_000,
    "word " * 2_000,
)


class ReadingContract(StoreTools):
    """Paging, feed, search, facts and attachments; many readers and writers at once."""

    def test_a_log_is_read_in_pages(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, *"12345"))

            assert [each.seq for each in store.entries("a", after=1, limit=2)] == [2, 3]
            assert [each.seq for each in store.entries("a", after=3, upto=4)] == [4]
            assert [each.seq for each in store.entries("a", upto=2)] == [1, 2]
            assert list(store.entries("a", after=5)) == []
            assert list(store.entries("a", limit=0)) == []

    def test_what_was_never_made_is_unknown(self) -> None:
        with self.open() as store:
            assert store.info("a") is None
            assert store.get_attachment("a", "x") is None
            for action in (store.load, store.entries):
                assert error_of(UnknownConversation, partial(action, "a"))
            assert error_of(UnknownConversation, lambda: store.search("a", "x"))
            assert error_of(UnknownConversation, lambda: store.set_metadata("a", {}))
            assert error_of(UnknownConversation, lambda: store.put_attachment("a", "x", b""))

    def test_the_feed_has_the_entries_of_all_in_order(self) -> None:
        with self.open("a", "b") as store:
            store.write([write("a", 0, "1"), write("b", 0, "2")])
            store.write([write("a", 1, "3", "4")])

            fed = store.feed()

            assert [(each.conversation_id, each.entry.seq) for each in fed] == [
                ("a", 1),
                ("b", 1),
                ("a", 2),
                ("a", 3),
            ]
            assert all(one.position < other.position for one, other in pairwise(fed))
            assert list(store.feed(after=fed[1].position, limit=1)) == [fed[2]]
            assert list(store.feed(after=fed[-1].position)) == []

    def test_the_feed_never_misses_an_entry(self) -> None:
        names = [f"c{number}" for number in range(4)]
        with self.open(*names) as store:
            ended = Event()
            fed: list[FeedEntry] = []
            reader = Thread(target=_follow, args=(store, ended, fed))
            reader.start()

            _all_at_once([partial(_append, store, name, 50) for name in names])
            ended.set()
            reader.join(30)

            assert len(fed) == len(names) * 50
            assert len({each.position for each in fed}) == len(fed)
            for name in names:
                seqs = [each.entry.seq for each in fed if each.conversation_id == name]
                assert seqs == list(range(1, 51))

    def test_of_two_claimants_who_write_one_is_fenced(self) -> None:
        with self.open("a") as store:
            kept: list[int] = []
            _all_at_once([lambda: _contend(store, "a", 30, kept)] * 3)

            epochs = [int(text) for text in texts_of(store, "a")]
            assert epochs == sorted(epochs)
            assert epochs == sorted(kept)
            claim = store.claim("a")
            assert only(store, write("a", claim.head, "last", epoch=claim.epoch)) is None

    def test_many_write_at_once(self) -> None:
        names = [f"c{number}" for number in range(8)]
        with self.open(*names) as store:
            _all_at_once([partial(_append, store, name, 20) for name in names])

            for name in names:
                assert texts_of(store, name) == [str(number) for number in range(20)]

    def test_words_are_found_whatever_their_case(self) -> None:
        with self.open("a", "b") as store:
            only(store, write("a", 0, "The quick brown Fox", "a lazy dog", "nothing"))
            only(store, write("b", 0, "another fox"))

            assert _search(store, "fox") == [1]
            assert _search(store, "LAZY") == [2]
            assert _search(store, "zebra") == []

    def test_what_is_written_later_is_found_too(self) -> None:
        with self.open("a") as store:
            assert _search(store, "first") == []
            only(store, write("a", 0, "first"))
            assert _search(store, "second") == []

            only(store, write("a", 1, "second"))

            assert _search(store, "second") == [2]

    def test_two_characters_without_spaces_around_are_found(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "我昨天去了北京大学", "東京タワー", "서울에서"))

            assert _search(store, "北京") == [1]
            assert _search(store, "大学") == [1]
            assert _search(store, "タワ") == [2]
            assert _search(store, "서울") == [3]
            assert _search(store, "南京") == []

    def test_parts_of_identifiers_are_found(self) -> None:
        with self.open("a") as store:
            only(
                store, write("a", 0, "call load_config_file()", "new HttpRequestParser", "x.y.zed")
            )

            assert _search(store, "config") == [1]
            assert _search(store, "load_config_file") == [1]
            assert _search(store, "request") == [2]
            assert _search(store, "httprequestparser") == [2]
            assert _search(store, "zed") == [3]

    def test_the_best_is_found_first(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "red", "a red car", "a car"))

            assert _search(store, "red car")[0] == 2
            assert len(store.search("a", "car", limit=1)) == 1
            assert list(store.search("a", "car", limit=0)) == []

    def test_any_text_may_be_searched_for(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "hello", 'say "hello" again', "100%"))

            for text in ODD_QUERIES:
                assert all(isinstance(each, Entry) for each in store.search("a", text))

    def test_any_payload_may_be_searched(self) -> None:
        with self.open("a") as store:
            payloads = (
                b'{"t": "\\ud800 lone"}',
                b'{"t": "nul\\u0000 nul"}',
                b'{"t": [[{"u": "in"}]]}',
            )
            entries = tuple(
                Entry(seq, "kind", payload, 1.0) for seq, payload in enumerate(payloads, start=1)
            )
            only(store, Write(conversation_id="a", epoch=1, head=0, entries=entries))

            assert (_search(store, "lone"), _search(store, "nul"), _search(store, "in")) == (
                [1],
                [2],
                [3],
            )

    def test_facts_of_a_conversation(self) -> None:
        with self.open("a") as store:
            made = facts(store, "a")
            only(store, write("a", 0, "1", "2"))
            about = facts(store, "a")

            assert (made.head, about.head) == (0, 2)
            assert about.created_at == made.created_at
            assert about.updated_at > made.updated_at
            assert (about.metadata, about.parent) == ({}, None)

    def test_metadata_is_replaced(self) -> None:
        with self.open("a") as store:
            store.set_metadata("a", {"first": 1})
            metadata = {"title": "ä 你 \0", "tags": ["x", None, {"y": 1.5}]}

            store.set_metadata("a", metadata)

            assert facts(store, "a").metadata == metadata

    def test_metadata_that_is_not_json_is_refused(self) -> None:
        with self.open("a") as store:
            store.set_metadata("a", {"kept": True})

            for wrong in ({"a": object()}, {"a": "\ud800"}):
                assert error_of(InvalidOptions, partial(store.set_metadata, "a", wrong))

            assert facts(store, "a").metadata == {"kept": True}

    def test_conversations_are_listed_by_id(self) -> None:
        ids = ["B", "a", "a-1", "a1", "aa", "ä", "你", "👍"]
        with self.open(*reversed(ids)) as store:
            listed = [about.id for about in store.conversations()]

            assert listed == sorted(ids) == ids
            assert [each.id for each in store.conversations(after="a1", limit=2)] == ["aa", "ä"]
            assert list(store.conversations(after="👍")) == []

    def test_an_id_that_can_t_be_kept_is_refused(self) -> None:
        with self.open() as store:
            for wrong in ("", "nul \0", "lone \ud800"):
                assert error_of(InvalidOptions, partial(store.claim, wrong))

    def test_what_can_t_be_kept_can_t_be_found(self) -> None:
        with self.open("a") as store:
            for wrong in ("", "nul \0", "lone \ud800"):
                assert store.info(wrong) is None
                assert store.find_by_key("a", wrong) is None
                assert store.get_attachment("a", wrong) is None
                assert not store.delete(wrong)
                assert error_of(UnknownConversation, partial(store.load, wrong))
                store.release(wrong, 1)
            assert list(store.conversations(after="lone \ud800", limit=0)) == []

    def test_attachments_are_kept_until_they_are_dropped(self) -> None:
        with self.open("a", "b") as store:
            store.put_attachment("a", "x", b"old")
            store.put_attachment("a", "x", b"\0\xff")
            store.put_attachment("b", "x", b"")

            assert (store.get_attachment("a", "x"), store.get_attachment("b", "x")) == (
                b"\0\xff",
                b"",
            )
            store.put_attachment("a", "x", None)
            store.put_attachment("a", "never there", None)
            assert store.get_attachment("a", "x") is None

    def test_a_check_finds_something_to_say(self) -> None:
        with self.open() as store:
            findings = store.health()

            assert findings
            assert all(
                isinstance(each, HealthCheck) and each.name and each.text for each in findings
            )

    def test_a_closed_store_is_unavailable(self) -> None:
        with self.open("a") as store:
            store.close()
            store.close()

            for action in (
                lambda: store.claim("a"),
                lambda: store.write([write("a", 0, "1")]),
                lambda: store.load("a"),
                store.feed,
                store.health,
            ):
                assert error_of(StoreUnavailable, action)


def _search(store: Store, text: str) -> list[int]:
    return [each.seq for each in store.search("a", text)]


def _all_at_once(actions: Sequence[Callable[[], object]]) -> None:
    """Run each on a thread of its own, all begun together; raises what one of them raised."""
    start, errors = Barrier(len(actions)), list[BaseException]()

    def run(action: Callable[[], object]) -> None:
        start.wait(30)
        try:
            action()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def _append(store: Store, name: str, count: int) -> None:
    for number in range(count):
        assert only(store, write(name, number, str(number))) is None


def _contend(store: Store, name: str, tries: int, kept: list[int]) -> None:
    """Write entries that say their epoch, and claim anew whenever somebody else has."""
    claim = store.claim(name)
    head = claim.head
    for _ in range(tries):
        answer = only(store, write(name, head, str(claim.epoch), epoch=claim.epoch))
        if answer is None:
            kept.append(claim.epoch)
            head += 1
        else:
            assert isinstance(answer, Fenced)
            claim = store.claim(name)
            head = claim.head


def _follow(store: Store, ended: Event, fed: list[FeedEntry]) -> None:
    """Read the feed from position to position until there is nothing behind the end."""
    while True:
        over = ended.is_set()
        page = store.feed(after=fed[-1].position if fed else 0, limit=7)
        fed += page
        if over and not page:
            return
