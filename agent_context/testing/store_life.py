"""What every store must do with snapshots and forks, and with what is deleted."""

from __future__ import annotations

from functools import partial

from agent_context.errors import (
    ConversationDeleted,
    Fenced,
    UnknownConversation,
)
from agent_context.stores.store import Parent, Removed, Snapshot, Store, Write
from agent_context.testing.store_tools import (
    StoreTools,
    entry,
    facts,
    only,
    raised,
    refused,
    said,
    write,
)

__all__ = ["LifeContract"]

LATER = 1_000.0
"""After the time of every entry here."""


class LifeContract(StoreTools):
    """Snapshots, forks, deletion and vacuum."""

    def test_loading_begins_at_the_newest_snapshot(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1", "2", "3", "4"))
            snapshot = Snapshot(3, 7, b'{"z": 1,"a":2}')

            store.save_snapshot("a", 1, Snapshot(2, 7, b"{}"))
            store.save_snapshot("a", 1, snapshot)

            log = store.load("a")
            assert log.snapshot == snapshot
            assert [each.seq for each in log.entries] == [4]
            assert log.parent is None

    def test_an_older_state_can_be_loaded(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1", "2", "3", "4"))
            store.save_snapshot("a", 1, Snapshot(3, 1, b"{}"))

            assert _loaded(store, "a", 2) == (0, [1, 2])
            assert _loaded(store, "a", 3) == (3, [])
            assert _loaded(store, "a", 99) == (3, [4])

    def test_a_snapshot_of_an_old_epoch_is_fenced(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1"))
            store.claim("a")

            assert _fenced(store, Snapshot(1, 1, b"{}"), epoch=1)
            assert store.load("a").snapshot is None

    def test_a_snapshot_of_what_is_not_written_yet_is_fenced(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1"))

            assert _fenced(store, Snapshot(2, 1, b"{}"), epoch=1)
            assert store.load("a").snapshot is None

    def test_a_fork_knows_where_it_began(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1", "2", "3"))
            parent = Parent("a", 2)

            claim = store.claim("b", parent=parent)
            only(store, write("b", 0, "other"))

            assert (claim.epoch, claim.head) == (1, 0)
            assert store.load("b").parent == parent
            assert facts(store, "b").parent == parent
            assert said(store, "b") == ["other"]
            assert said(store, "a") == ["1", "2", "3"]

    def test_a_parent_is_kept_when_the_conversation_is_made(self) -> None:
        with self.opened("a", "b") as store:
            only(store, write("a", 0, "1"))
            store.claim("b", parent=Parent("a", 1))

            assert store.load("b").parent is None

    def test_a_fork_of_what_is_not_there_is_refused(self) -> None:
        with self.opened("a", "dead") as store:
            only(store, write("a", 0, "1"))
            store.delete("dead")

            for parent in (
                Parent("unknown", 0),
                Parent("a", 2),
                Parent("a", -1),
                Parent("dead", 0),
            ):
                assert raised(UnknownConversation, partial(store.claim, "b", parent=parent))

            assert store.about("b") is None

    def test_a_deleted_conversation_is_gone_for_all(self) -> None:
        with self.opened("a", "b") as store:
            store.write([write("a", 0, "1", key="k"), write("b", 0, "1")])

            assert store.delete("a")

            assert store.about("a") is None
            assert store.find("a", "k") is None
            assert store.attached("a", "x") is None
            assert [about.id for about in store.conversations()] == ["b"]
            assert [fed.conversation_id for fed in store.feed()] == ["b"]
            assert raised(UnknownConversation, lambda: store.load("a"))
            assert raised(UnknownConversation, lambda: store.entries("a"))
            assert raised(UnknownConversation, lambda: store.search("a", "1"))
            assert raised(UnknownConversation, lambda: store.annotate("a", {}))
            assert raised(UnknownConversation, lambda: store.attach("a", "x", b""))

    def test_a_deleted_conversation_is_never_made_again(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1"))
            store.delete("a")
            store.vacuum()

            assert raised(ConversationDeleted, lambda: store.claim("a"))
            for epoch in (1, 2, 3):
                assert refused(Fenced, only(store, write("a", 1, "late", epoch=epoch)))
            assert _fenced(store, Snapshot(1, 1, b"{}"), epoch=1)

    def test_what_is_not_there_can_t_be_deleted(self) -> None:
        with self.opened("a") as store:
            store.delete("a")

            assert not store.delete("a")
            assert not store.delete("unknown")

    def test_a_vacuum_takes_away_what_was_deleted(self) -> None:
        with self.opened("a", "b") as store:
            store.write([write("a", 0, "1", "2"), write("b", 0, "1")])
            store.attach("a", "x", b"1")
            store.delete("a")

            assert store.vacuum() == Removed(conversations=1, entries=2)
            assert store.vacuum() == Removed()
            assert said(store, "b") == ["1"]

    def test_a_deleted_parent_is_read_as_far_as_forks_need_it(self) -> None:
        with self.opened("a") as store:
            _forked(store)
            store.delete("a")

            for _ in range(2):
                assert _loaded(store, "a", 2) == (0, [1, 2])
                assert _loaded(store, "a", None) == (0, [1, 2])
                assert said(store, "a") == ["1", "2"]
                store.vacuum()

    def test_a_deleted_parent_goes_with_its_last_fork(self) -> None:
        with self.opened("a") as store:
            _forked(store)
            store.claim("grandchild", parent=Parent("child", 0))
            store.delete("a")
            store.delete("child")
            assert _loaded(store, "a", 2) == (0, [1, 2])

            store.delete("grandchild")

            assert raised(UnknownConversation, lambda: store.load("a", upto=2))
            assert store.vacuum().conversations == 3

    def test_without_a_time_a_vacuum_leaves_the_living_alone(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1", "2"))
            store.save_snapshot("a", 1, Snapshot(2, 1, b"{}"))

            assert store.vacuum() == Removed()
            assert said(store, "a") == ["1", "2"]

    def test_a_vacuum_removes_old_entries_behind_a_snapshot(self) -> None:
        with self.opened("a", "b") as store:
            times = [entry(number, at=10.0 * number) for number in range(1, 6)]
            whole = Write(conversation_id="a", epoch=1, head=0, entries=tuple(times))
            store.write([whole, write("b", 0, "no snapshot")])
            store.save_snapshot("a", 1, Snapshot(4, 1, b"{}"))

            assert store.vacuum(before=30.0) == Removed(entries=2)

            assert [each.seq for each in store.entries("a")] == [3, 4, 5]
            assert _loaded(store, "a", None) == (4, [5])
            assert raised(UnknownConversation, lambda: store.load("a", upto=3))
            assert raised(UnknownConversation, lambda: store.claim("c", parent=Parent("a", 1)))
            assert store.vacuum(before=LATER) == Removed(entries=2)
            assert _loaded(store, "a", None) == (4, [5])
            assert said(store, "b") == ["no snapshot"]

    def test_a_vacuum_leaves_what_forks_need(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1", "2", "3", "4", "5", "6"))
            store.save_snapshot("a", 1, Snapshot(2, 1, b"early"))
            store.claim("child", parent=Parent("a", 4))
            store.save_snapshot("a", 1, Snapshot(6, 1, b"late"))

            assert store.vacuum(before=LATER) == Removed(entries=4)

            assert _loaded(store, "a", 4) == (2, [3, 4])
            assert _loaded(store, "a", None) == (6, [])
            store.delete("child")
            store.save_snapshot("a", 1, Snapshot(6, 1, b"again"))
            assert store.vacuum(before=LATER).entries == 2

    def test_a_log_goes_on_after_a_vacuum(self) -> None:
        with self.opened("a") as store:
            only(store, write("a", 0, "1", "2", key="k"))
            store.save_snapshot("a", 1, Snapshot(2, 1, b"{}"))
            position = store.feed()[-1].position
            store.vacuum(before=LATER)

            assert only(store, write("a", 2, "3")) is None

            assert _loaded(store, "a", None) == (2, [3])
            assert [fed.entry.seq for fed in store.feed(after=position)] == [3]
            assert store.claim("a").head == 3


def _loaded(store: Store, conversation_id: str, upto: int | None) -> tuple[int, list[int]]:
    """Where the snapshot ends that a load begins with, and the numbers of the entries after it."""
    log = store.load(conversation_id, upto=upto)
    return log.snapshot.seq if log.snapshot else 0, [each.seq for each in log.entries]


def _forked(store: Store) -> None:
    only(store, write("a", 0, "1", "2", "3"))
    store.claim("child", parent=Parent("a", 2))


def _fenced(store: Store, snapshot: Snapshot, *, epoch: int) -> bool:
    return raised(Fenced, lambda: store.save_snapshot("a", epoch, snapshot))
