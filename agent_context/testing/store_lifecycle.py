"""What every store must do with snapshots and forks, and with what is deleted."""

from __future__ import annotations

from functools import partial

from agent_context.errors import (
    ConversationDeleted,
    Fenced,
    UnknownConversation,
)
from agent_context.stores.store import ForkOrigin, Snapshot, Store, VacuumResult, Write
from agent_context.testing._store_helpers import (
    StoreTools,
    entry,
    error_of,
    facts,
    is_refused,
    only,
    texts_of,
    write,
)

__all__ = ["LifeContract"]

LATER = 1_000.0
"""After the time of every entry here."""


class LifeContract(StoreTools):
    """Snapshots, forks, deletion and vacuum."""

    def test_loading_begins_at_the_newest_snapshot(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1", "2", "3", "4"))
            snapshot = Snapshot(3, 7, b'{"z": 1,"a":2}')

            store.save_snapshot("a", 1, Snapshot(2, 7, b"{}"))
            store.save_snapshot("a", 1, snapshot)

            log = store.load("a")
            assert log.snapshot == snapshot
            assert [each.seq for each in log.entries] == [4]
            assert log.parent is None

    def test_an_older_state_can_be_loaded(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1", "2", "3", "4"))
            store.save_snapshot("a", 1, Snapshot(3, 1, b"{}"))

            assert _load(store, "a", 2) == (0, [1, 2])
            assert _load(store, "a", 3) == (3, [])
            assert _load(store, "a", 99) == (3, [4])

    def test_a_snapshot_of_an_old_epoch_is_fenced(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1"))
            store.claim("a")

            assert _is_fenced(store, Snapshot(1, 1, b"{}"), epoch=1)
            assert store.load("a").snapshot is None

    def test_a_snapshot_of_what_is_not_written_yet_is_fenced(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1"))

            assert _is_fenced(store, Snapshot(2, 1, b"{}"), epoch=1)
            assert store.load("a").snapshot is None

    def test_a_fork_knows_where_it_began(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1", "2", "3"))
            parent = ForkOrigin("a", 2)

            claim = store.claim("b", parent=parent)
            only(store, write("b", 0, "other"))

            assert (claim.epoch, claim.head) == (1, 0)
            assert store.load("b").parent == parent
            assert facts(store, "b").parent == parent
            assert texts_of(store, "b") == ["other"]
            assert texts_of(store, "a") == ["1", "2", "3"]

    def test_a_parent_is_kept_when_the_conversation_is_made(self) -> None:
        with self.open("a", "b") as store:
            only(store, write("a", 0, "1"))
            store.claim("b", parent=ForkOrigin("a", 1))

            assert store.load("b").parent is None

    def test_a_fork_of_what_is_not_there_is_refused(self) -> None:
        with self.open("a", "dead") as store:
            only(store, write("a", 0, "1"))
            store.delete("dead")

            for parent in (
                ForkOrigin("unknown", 0),
                ForkOrigin("a", 2),
                ForkOrigin("a", -1),
                ForkOrigin("dead", 0),
            ):
                assert error_of(UnknownConversation, partial(store.claim, "b", parent=parent))

            assert store.info("b") is None

    def test_a_deleted_conversation_is_gone_for_all(self) -> None:
        with self.open("a", "b") as store:
            store.write([write("a", 0, "1", key="k"), write("b", 0, "1")])

            assert store.delete("a")

            assert store.info("a") is None
            assert store.find_by_key("a", "k") is None
            assert store.get_attachment("a", "x") is None
            assert [about.id for about in store.conversations()] == ["b"]
            assert [fed.conversation_id for fed in store.feed()] == ["b"]
            assert error_of(UnknownConversation, lambda: store.load("a"))
            assert error_of(UnknownConversation, lambda: store.entries("a"))
            assert error_of(UnknownConversation, lambda: store.search("a", "1"))
            assert error_of(UnknownConversation, lambda: store.set_metadata("a", {}))
            assert error_of(UnknownConversation, lambda: store.put_attachment("a", "x", b""))

    def test_a_deleted_conversation_is_never_made_again(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1"))
            store.delete("a")
            store.vacuum()

            assert error_of(ConversationDeleted, lambda: store.claim("a"))
            for epoch in (1, 2, 3):
                assert is_refused(Fenced, only(store, write("a", 1, "late", epoch=epoch)))
            assert _is_fenced(store, Snapshot(1, 1, b"{}"), epoch=1)

    def test_what_is_not_there_can_t_be_deleted(self) -> None:
        with self.open("a") as store:
            store.delete("a")

            assert not store.delete("a")
            assert not store.delete("unknown")

    def test_a_vacuum_takes_away_what_was_deleted(self) -> None:
        with self.open("a", "b") as store:
            store.write([write("a", 0, "1", "2"), write("b", 0, "1")])
            store.put_attachment("a", "x", b"1")
            store.delete("a")

            assert store.vacuum() == VacuumResult(conversations=1, entries=2)
            assert store.vacuum() == VacuumResult()
            assert texts_of(store, "b") == ["1"]

    def test_a_deleted_parent_is_read_as_far_as_forks_need_it(self) -> None:
        with self.open("a") as store:
            _fork(store)
            store.delete("a")

            for _ in range(2):
                assert _load(store, "a", 2) == (0, [1, 2])
                assert _load(store, "a", None) == (0, [1, 2])
                assert texts_of(store, "a") == ["1", "2"]
                store.vacuum()

    def test_a_deleted_parent_goes_with_its_last_fork(self) -> None:
        with self.open("a") as store:
            _fork(store)
            store.claim("grandchild", parent=ForkOrigin("child", 0))
            store.delete("a")
            store.delete("child")
            assert _load(store, "a", 2) == (0, [1, 2])

            store.delete("grandchild")

            assert error_of(UnknownConversation, lambda: store.load("a", upto=2))
            assert store.vacuum().conversations == 3

    def test_without_a_time_a_vacuum_leaves_the_living_alone(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1", "2"))
            store.save_snapshot("a", 1, Snapshot(2, 1, b"{}"))

            assert store.vacuum() == VacuumResult()
            assert texts_of(store, "a") == ["1", "2"]

    def test_a_vacuum_removes_old_entries_behind_a_snapshot(self) -> None:
        with self.open("a", "b") as store:
            times = [entry(number, at=10.0 * number) for number in range(1, 6)]
            whole = Write(conversation_id="a", epoch=1, head=0, entries=tuple(times))
            store.write([whole, write("b", 0, "no snapshot")])
            store.save_snapshot("a", 1, Snapshot(4, 1, b"{}"))

            assert store.vacuum(before=30.0) == VacuumResult(entries=2)

            assert [each.seq for each in store.entries("a")] == [3, 4, 5]
            assert _load(store, "a", None) == (4, [5])
            assert error_of(UnknownConversation, lambda: store.load("a", upto=3))
            assert error_of(
                UnknownConversation, lambda: store.claim("c", parent=ForkOrigin("a", 1))
            )
            assert store.vacuum(before=LATER) == VacuumResult(entries=2)
            assert _load(store, "a", None) == (4, [5])
            assert texts_of(store, "b") == ["no snapshot"]

    def test_a_vacuum_leaves_what_forks_need(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1", "2", "3", "4", "5", "6"))
            store.save_snapshot("a", 1, Snapshot(2, 1, b"early"))
            store.claim("child", parent=ForkOrigin("a", 4))
            store.save_snapshot("a", 1, Snapshot(6, 1, b"late"))

            assert store.vacuum(before=LATER) == VacuumResult(entries=4)

            assert _load(store, "a", 4) == (2, [3, 4])
            assert _load(store, "a", None) == (6, [])
            store.delete("child")
            store.save_snapshot("a", 1, Snapshot(6, 1, b"again"))
            assert store.vacuum(before=LATER).entries == 2

    def test_a_log_goes_on_after_a_vacuum(self) -> None:
        with self.open("a") as store:
            only(store, write("a", 0, "1", "2", key="k"))
            store.save_snapshot("a", 1, Snapshot(2, 1, b"{}"))
            position = store.feed()[-1].position
            store.vacuum(before=LATER)

            assert only(store, write("a", 2, "3")) is None

            assert _load(store, "a", None) == (2, [3])
            assert [fed.entry.seq for fed in store.feed(after=position)] == [3]
            assert store.claim("a").head == 3


def _load(store: Store, conversation_id: str, upto: int | None) -> tuple[int, list[int]]:
    """Where the snapshot ends that a load begins with, and the numbers of the entries after it."""
    log = store.load(conversation_id, upto=upto)
    return log.snapshot.seq if log.snapshot else 0, [each.seq for each in log.entries]


def _fork(store: Store) -> None:
    only(store, write("a", 0, "1", "2", "3"))
    store.claim("child", parent=ForkOrigin("a", 2))


def _is_fenced(store: Store, snapshot: Snapshot, *, epoch: int) -> bool:
    return error_of(Fenced, lambda: store.save_snapshot("a", epoch, snapshot))
