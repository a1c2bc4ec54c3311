"""What durable conversations were: forks of forks, vacuums, snapshots that can't be read."""

from __future__ import annotations

import pickle
from threading import Event
from typing import cast

import pytest

from agent_context import Append, ContextRef, Extend, Fork, Message, Messages, Send, events
from agent_context._actor.changes import Appended
from agent_context._actor.journal import Journal
from agent_context._actor.recovery import load_state
from agent_context._actor.replay import encode_change, encode_forked
from agent_context._actor.snapshot_codec import encode_snapshot
from agent_context._context.stored_message import from_message
from agent_context.errors import ContextFull, InvalidOptions, StoreUnavailable
from agent_context.protocol import History, HistoryPage, Rewind, SearchHistory
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import ForkOrigin, Snapshot, Store
from agent_context.stores.writer import StoreExecutor
from agent_context_backends.scripted import Hold
from tests.actor.conftest import Seen, Talk
from tests.actor.stores import Failing, Gate, Held
from tests.support.waiting import WAIT, wait_for


def said(text: str) -> Append:
    return Append(Message.user(text))


def words(page: HistoryPage) -> list[str]:
    return [remark.message.text for remark in page.entries]


def texts(ref: ContextRef) -> list[str]:
    return [message.text for message in ref.ask(Messages())]


def test_what_a_parent_said_later_does_not_crowd_out_what_a_fork_recalls(
    talk: Talk, store: Store
) -> None:
    ref = talk(store=store, id="c")
    ref.ask(said("the key is under the mat, where it has always been in all those years"))
    fork = ref.ask(Fork())
    for _ in range(12):
        ref.ask(said("key mat"))
    (found,) = fork.ask(SearchHistory("key mat", limit=3))
    assert found.message.text.startswith("the key is under")


def test_a_fork_of_a_fork_of_many_is_read_again(talk: Talk) -> None:
    store = MemoryStore()
    talk(store=store, id="0").stop()
    depth = 1500
    for i in range(depth):
        head = 1 if i == 0 else 2
        claim = store.claim(f"{i + 1}", parent=ForkOrigin(f"{i}", head))
        journal = Journal(StoreExecutor.for_store(store), f"{i + 1}", claim.epoch, 0)

        journal.add(*encode_forked(f"{i}", head, None))
        journal.add(*encode_change(Appended(from_message(Message.user(str(i))))))
        kept = journal.commit()
        assert kept is None or kept.get(timeout=WAIT) is None
    assert len(load_state(store, str(depth)).zones) == depth
    ref = talk(store=store, id=str(depth))
    assert words(ref.ask(History(limit=2), timeout=WAIT)) == ["0", "1"]


def test_history_of_a_fork_goes_back_to_its_parents_after_a_vacuum(
    talk: Talk, store: Store
) -> None:
    ref = talk(store=store, id="c")
    ref.ask(said("a"))
    fork = ref.ask(Fork())
    name = fork.id
    fork.ask(Extend([Message.user("b"), Message.user("c")]))
    second = fork.ask(Fork(at=2))
    second.ask(said("d"))
    for each in (second, fork, ref):
        each.stop()
    for about in store.conversations():
        claim = store.claim(about.id)
        moment = load_state(store, about.id)

        store.save_snapshot(about.id, claim.epoch, encode_snapshot(moment))
    assert store.vacuum(before=float("inf")).entries > 0
    again = talk(store=store, id=second.id)
    assert texts(again) == ["a", "b", "d"]
    again.ask(said("e"))
    assert words(again.ask(History()))[-1] == "e"
    parent = talk(store=store, id=name)
    assert texts(parent) == ["a", "b", "c"]
    store.delete("c")
    store.vacuum(before=float("inf"))
    assert texts(talk(store=store, id=second.id)) == ["a", "b", "d", "e"]


def test_history_finds_the_parents_of_a_fork_whose_beginning_a_vacuum_took(
    talk: Talk, store: Store
) -> None:

    ref = talk(store=store, id="c")
    ref.ask(said("a"))
    fork = ref.ask(Fork())
    fork.ask(said("b"))
    fork.stop()
    claim = store.claim(fork.id)
    store.save_snapshot(fork.id, claim.epoch, encode_snapshot(load_state(store, fork.id)))
    store.vacuum(before=float("inf"))
    again = talk(store=store, id=fork.id)
    again.ask(said("c"))
    assert words(again.ask(History())) == ["a", "c"]


def test_a_snapshot_that_can_not_be_read_costs_time_and_nothing_else(
    talk: Talk, store: Store
) -> None:
    ref = talk(store=store, id="c")
    ref.ask(Extend([Message.user("a"), Message.user("b")]))
    ref.ask(Rewind(1))
    ref.stop()
    claim = store.claim("c")
    store.save_snapshot("c", claim.epoch, Snapshot(2, 1, b"torn"))
    assert texts(talk(store=store, id="c")) == ["a"]


def test_what_was_said_at_once_is_read_from_a_snapshot_by_the_next_owner(
    talk: Talk, store: Store
) -> None:
    ref = talk(store=store, id="c")
    ref.ask(Extend([Message.user("word " * 20) for _ in range(500)]))
    ref.stop()
    log = store.load("c")
    assert log.snapshot is not None
    assert not log.entries


def test_a_conversation_that_is_parked_after_each_message_has_a_short_log_to_read(
    talk: Talk, store: Store
) -> None:
    unread, snapshots = [], set[int]()
    for number in range(120):
        ref = talk(store=store, id="c")
        ref.ask(Append(Message.user(str(number))))
        ref.stop()
        log = store.load("c")
        unread.append(len(log.entries))
        snapshots.add(log.snapshot.seq if log.snapshot else 0)
    assert max(unread) <= 40
    assert len(snapshots) <= 10


def test_a_fork_of_a_conversation_whose_turn_runs_has_what_is_stored(
    talk: Talk, store: Store, seen: Seen
) -> None:
    hold = Hold()
    ref = talk(["one", hold, "two"], store=store, id="c", on_change=seen)
    ref.ask(Send(messages=[Message.user("a")]))
    running = ref.actor_ref.ask(Send(messages=[Message.user("b")]), block=False)
    wait_for(hold.entered)
    fork = ref.ask(Fork())
    hold.release()
    running.get(timeout=WAIT)
    assert texts(fork) == ["a", "one"]
    name = fork.id
    fork.stop()
    assert texts(talk(store=store, id=name)) == ["a", "one"]
    assert len(seen.of(events.TurnLost)) == 0


@pytest.mark.parametrize(
    "asked",
    [
        History(after=cast("str", 5)),
        SearchHistory(cast("str", 5)),
        History(after="c 1"),
        History(after="x 1 2"),
    ],
)
def test_a_bad_place_in_the_past_is_refused(talk: Talk, asked: History | SearchHistory) -> None:
    ref = talk(store=MemoryStore(), id="c")
    with pytest.raises(InvalidOptions):
        ref.ask(asked)


def test_errors_travel_between_processes() -> None:
    full = ContextFull(
        needed=1, window=2, reserve=3, immutable=4, compressed=5, incremental=6, scratch=7,
        tools=8, instructions=9, why="so",
    )  # fmt: skip
    again = pickle.loads(pickle.dumps(full))
    assert (str(again), vars(again)) == (str(full), vars(full))


def _journal(store: MemoryStore) -> Journal:
    return Journal(StoreExecutor.for_store(store), "c", store.claim("c").epoch, 0)


def test_whoever_comes_when_a_change_is_kept_does_not_overtake_who_waited() -> None:
    store, inside, told = Held(), Gate(), Event()
    journal = _journal(store)
    heard: list[str] = []

    def slow(_: BaseException | None) -> None:
        inside.pass_through()
        heard.append("first")

    def second(_: BaseException | None) -> None:
        heard.append("second")
        told.set()

    inside.shut()
    store.writing.shut()
    journal.add("note", b"{}")
    journal.on_committed(slow)
    journal.commit()
    store.writing.open()
    wait_for(inside.reached)
    journal.on_committed(second)
    inside.open()
    wait_for(told)
    assert heard == ["first", "second"]


def test_one_that_fails_when_a_change_is_kept_hurts_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal, told = _journal(MemoryStore()), Event()

    def broken(_: BaseException | None) -> None:
        raise ZeroDivisionError

    journal.add("note", b"{}")
    journal.on_committed(broken)
    journal.on_committed(lambda _: told.set())
    journal.commit()
    wait_for(told)
    assert "ZeroDivisionError" in caplog.text


def test_what_is_found_lost_is_not_taken_for_kept() -> None:
    store = Failing()
    journal = _journal(store)
    store.error = StoreUnavailable("the disk is full")
    journal.add("note", b"{}")
    lost = journal.commit()
    assert lost is not None
    with pytest.raises(StoreUnavailable):
        lost.get(timeout=WAIT)
    again = journal.commit()
    assert again is not None
    assert isinstance(again.error(), StoreUnavailable)
