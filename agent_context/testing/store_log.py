"""What every store must do with a log: who may write, and what comes of a write."""

from __future__ import annotations

from agent_context.errors import Fenced, StoreError
from agent_context.stores.store import Entry, Write
from agent_context.testing._store_helpers import (
    StoreTools,
    entry,
    facts,
    is_refused,
    only,
    texts_of,
    write,
)

__all__ = ["LogContract"]


class LogContract(StoreTools):
    """Claims and writes."""

    def test_a_new_conversation_begins_with_nothing(self) -> None:
        with self.open() as store:
            claim = store.claim("a")

            assert (claim.epoch, claim.head, claim.draft) == (1, 0, None)
            assert texts_of(store, "a") == []

    def test_a_claim_knows_where_the_log_ends(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "one", "two"))

            claim = store.claim("a")

            assert (claim.epoch, claim.head) == (2, 2)

    def test_a_second_claim_fences_the_first(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "one"))
            store.claim("a")

            answer = only(store, write("a", 1, "late", epoch=1))

            assert is_refused(Fenced, answer)
            assert only(store, write("a", 1, "two", epoch=2)) is None
            assert texts_of(store, "a") == ["one", "two"]

    def test_an_epoch_that_was_never_given_is_fenced(self) -> None:
        with self.open("a") as store:
            assert is_refused(Fenced, only(store, write("a", 0, "early", epoch=2)))
            assert is_refused(Fenced, only(store, write("unknown", 0, "lost")))

            assert texts_of(store, "a") == []
            assert store.info("unknown") is None

    def test_what_is_released_has_no_owner(self) -> None:
        with self.open("a") as store:
            assert facts(store, "a").owner

            store.release("a", 1)

            assert facts(store, "a").owner is None
            assert store.claim("a").epoch == 2

    def test_releasing_an_epoch_that_is_over_does_nothing(self) -> None:
        with self.open("a") as store:
            store.claim("a")

            store.release("a", 1)
            store.release("unknown", 1)

            assert facts(store, "a").owner
            assert only(store, write("a", 0, "one", epoch=2)) is None

    def test_entries_come_back_as_they_were(self) -> None:
        odd = b'{"z": 1,"a":  "\\u0000 \\ud800 \xe4\xbd\xa0\\n", "a": 1e400}'
        whole = Entry(1, "some.kind", odd, 1234567890.123456, "key/\xe4")
        with self.open("a") as store:
            only(store, Write(conversation_id="a", epoch=1, head=0, entries=(whole,)))

            assert list(store.entries("a")) == [whole]
            assert list(store.load("a").entries) == [whole]

    def test_large_entries_are_kept(self) -> None:
        text = "abcdefgh" * 250_000
        with self.open("a") as store:
            only(store, write("a", 0, text, "small"))

            assert texts_of(store, "a") == [text, "small"]

    def test_entries_must_go_on_from_the_head(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "one"))
            gap = Write(conversation_id="a", epoch=1, head=1, entries=(entry(3),))
            twice = Write(conversation_id="a", epoch=1, head=1, entries=(entry(2), entry(2)))

            for wrong in (write("a", 2, "late"), gap, twice):
                assert is_refused(Fenced, only(store, wrong))

            assert texts_of(store, "a") == ["one"]

    def test_a_batch_may_hold_writes_that_follow_one_another(self) -> None:
        with self.open("a", "b") as store:
            batch = [write("a", 0, "1", "2"), write("b", 0, "x"), write("a", 2, "3")]

            assert list(store.write(batch)) == [None, None, None]

            assert texts_of(store, "a") == ["1", "2", "3"]
            assert texts_of(store, "b") == ["x"]

    def test_an_empty_batch_is_harmless(self) -> None:
        with self.open() as store:
            assert list(store.write([])) == []

    def test_a_refused_write_does_not_hurt_the_others(self) -> None:
        with self.open("a", "b", "c") as store:
            batch = [write("a", 0, "1"), write("b", 5, "gap"), write("c", 0, "1")]

            first, second, third = store.write(batch)

            assert (first, third) == (None, None)
            assert is_refused(Fenced, second)
            assert (texts_of(store, "a"), texts_of(store, "b"), texts_of(store, "c")) == (
                ["1"],
                [],
                ["1"],
            )

    def test_behind_a_refused_write_what_follows_is_refused(self) -> None:
        with self.open("a") as store:
            answers = store.write([write("a", 3, "gap"), write("a", 4, "behind")])

            assert all(is_refused(Fenced, answer) for answer in answers)
            assert texts_of(store, "a") == []

    def test_a_write_that_is_kept_already_counts_as_kept(self) -> None:
        with self.open("a") as store:
            batch = [write("a", 0, "1", "2"), write("a", 2, "3", key="k")]
            store.write(batch)

            assert list(store.write(batch)) == [None, None]
            assert only(store, batch[0]) is None

            assert texts_of(store, "a") == ["1", "2", "3"]
            assert len(store.feed()) == 3

    def test_other_entries_under_the_same_numbers_are_fenced(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "one"))

            assert is_refused(Fenced, only(store, write("a", 0, "other")))

            assert texts_of(store, "a") == ["one"]

    def test_the_same_entries_of_another_epoch_are_fenced(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "one"))
            store.claim("a")

            assert is_refused(Fenced, only(store, write("a", 0, "one", epoch=2)))
            assert is_refused(Fenced, only(store, write("a", 0, "one", epoch=1)))

    def test_a_draft_is_found_by_the_next_owner(self) -> None:
        with self.open("a") as store:
            draft = b'{"said": "so far"}'

            only(store, Write(conversation_id="a", epoch=1, head=0, draft=draft))
            only(store, write("a", 0, "one"))

            assert store.claim("a").draft == draft

    def test_a_draft_changes_with_its_entries_or_not_at_all(self) -> None:
        with self.open("a") as store:
            end = write("a", 1, "two")
            only(store, Write(conversation_id="a", epoch=1, head=0, draft=b"{}"))
            gap = Write(conversation_id="a", epoch=1, head=1, entries=end.entries, draft=None)
            only(store, gap)
            assert store.claim("a").draft == b"{}"

            only(store, Write(conversation_id="a", epoch=2, head=0, draft=None))

            assert store.claim("a").draft is None

    def test_a_draft_of_an_old_epoch_is_fenced(self) -> None:
        with self.open("a") as store:
            store.claim("a")

            answer = only(store, Write(conversation_id="a", epoch=1, head=0, draft=b"{}"))

            assert is_refused(Fenced, answer)
            assert store.claim("a").draft is None

    def test_a_batch_that_is_written_again_leaves_the_last_draft(self) -> None:
        with self.open("a") as store:
            ends = Write(conversation_id="a", epoch=1, head=0, entries=(entry(1),), draft=None)
            batch = [
                Write(conversation_id="a", epoch=1, head=0, draft=b"first"),
                ends,
                Write(conversation_id="a", epoch=1, head=1, draft=b"last"),
            ]
            store.write(batch)

            assert list(store.write(batch)) == [None, None, None]

            assert store.claim("a").draft == b"last"

    def test_an_entry_is_found_by_its_key(self) -> None:
        with self.open("a", "b") as store:
            store.write([write("a", 0, "1", "2", key="k"), write("a", 2, "3")])

            assert store.find_by_key("a", "k") == entry(2, "2", key="k")
            assert store.find_by_key("a", "other") is None
            assert store.find_by_key("b", "k") is None
            assert store.find_by_key("unknown", "k") is None

    def test_a_key_is_used_once_in_a_conversation(self) -> None:
        with self.open("a", "b") as store:
            only(store, write("a", 0, "1", key="k"))

            answers = store.write([write("a", 1, "2", "3", key="k"), write("b", 0, "1", key="k")])

            assert is_refused(StoreError, answers[0])
            assert not isinstance(answers[0], Fenced)
            assert answers[1] is None
            assert (texts_of(store, "a"), texts_of(store, "b")) == (["1"], ["1"])

    def test_what_can_t_be_kept_is_refused_alone(self) -> None:
        with self.open("a", "b") as store:
            odd = Entry(1, "lone \ud800", b"{}", 1.0)
            key = Entry(1, "kind", b"{}", 1.0, "nul \0")

            for wrong in (odd, key):
                bad = Write(conversation_id="a", epoch=1, head=0, entries=(wrong,))
                first, second = store.write([bad, write("b", 0, "1")])
                assert is_refused(StoreError, first)
                assert second is None

            assert (texts_of(store, "a"), texts_of(store, "b")) == ([], ["1"])

    def test_all_is_there_when_the_store_is_opened_again(self) -> None:
        with self.open("a") as store:
            draft = Write(conversation_id="a", epoch=1, head=2, draft=b"draft")
            store.write([write("a", 0, "1", "2", key="k"), draft])
            fed = list(store.feed())

            again = self.reopen(store)

            try:
                assert texts_of(again, "a") == ["1", "2"]
                assert list(again.feed()) == fed
                assert again.find_by_key("a", "k")
                claim = again.claim("a")
                assert (claim.epoch, claim.head, claim.draft) == (2, 2, b"draft")
            finally:
                again.close()
