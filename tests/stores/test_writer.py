"""One thread writes for all: in order, together, and never past a failure."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from threading import Event

import pytest

from agent_context.errors import ConversationClosed, Fenced, StoreError, StoreUnavailable
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Write
from agent_context.stores.writer import StoreExecutor
from tests.stores.material import texts, write
from tests.support.waiting import WAIT, join, wait_for

Answers = Sequence[StoreError | None]


class WatchedStore(MemoryStore):
    """Says what it was given, and first does what the test wants."""

    def __init__(self, before: Callable[[Sequence[Write]], object] = lambda batch: None) -> None:
        super().__init__()
        self.batches: list[Sequence[Write]] = []
        self.before = before

    def write(self, batch: Sequence[Write]) -> Answers:
        self.batches.append(batch)
        self.before(batch)
        return super().write(batch)


class Gate:
    """Holds the first write of a store until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = Event(), Event()

    def __call__(self, batch: Sequence[Write]) -> None:
        self.reached.set()
        wait_for(self.opened)


def unavailable(times: int) -> Callable[[Sequence[Write]], None]:
    left = [times]

    def refuse(batch: Sequence[Write]) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise StoreUnavailable("locked")

    return refuse


def test_a_write_is_kept_when_its_reply_says_so() -> None:
    store = MemoryStore()
    store.claim("a")

    StoreExecutor(store).submit(write("a", 0, "one")).get(timeout=WAIT)

    assert texts(store, "a") == ["one"]


def test_all_that_waits_goes_into_one_batch() -> None:
    store = WatchedStore(gate := Gate())
    store.claim("a")
    store.claim("b")
    access = StoreExecutor(store)

    first = access.submit(write("a", 0, "one"))
    wait_for(gate.reached)
    rest = [access.submit(write(*place)) for place in (("a", 1, "x"), ("b", 0, "x"), ("a", 2, "x"))]
    gate.opened.set()

    for reply in [first, *rest]:
        reply.get(timeout=WAIT)
    assert [len(batch) for batch in store.batches] == [1, 3]


def test_a_batch_has_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_context.stores.writer.BYTES", 100)
    store = WatchedStore(gate := Gate())
    store.claim("a")
    access = StoreExecutor(store)
    replies = [access.submit(write("a", 0, "first"))]
    wait_for(gate.reached)

    replies += [access.submit(write("a", head, "x" * 60)) for head in range(1, 5)]
    gate.opened.set()

    for reply in replies:
        reply.get(timeout=WAIT)
    assert [len(batch) for batch in store.batches] == [1, 2, 2]


def test_replies_come_in_the_order_of_the_writes() -> None:
    store = MemoryStore()
    store.claim("a")
    access = StoreExecutor(store)
    order: list[int] = []

    def note(number: int) -> Callable[[object], object]:
        return lambda _: order.append(number)

    for number in range(200):
        access.submit(write("a", number, str(number))).add_done_callback(note(number))

    assert access.close(10)
    assert order == list(range(200))


def test_a_refused_write_takes_those_behind_it_along() -> None:
    store = MemoryStore()
    store.claim("a")
    store.claim("b")
    access = StoreExecutor(store)

    refused = [access.submit(write("a", head, "gap")) for head in (7, 8)]
    other = access.submit(write("b", 0, "other"))
    other.get(timeout=WAIT)
    refused.append(access.submit(write("a", 0, "this would fit")))

    errors = []
    for reply in refused:
        with pytest.raises(Fenced) as caught:
            reply.get(timeout=WAIT)
        errors.append(caught.value)
    assert errors[0] is errors[1] is errors[2]
    assert (texts(store, "a"), texts(store, "b")) == ([], ["other"])


def test_a_new_epoch_begins_without_the_failures_of_the_old_one() -> None:
    store = MemoryStore()
    store.claim("a")
    access = StoreExecutor(store)
    with pytest.raises(Fenced):
        access.submit(write("a", 7, "gap")).get(timeout=WAIT)

    epoch = store.claim("a").epoch
    access.submit(write("a", 0, "one", epoch=epoch)).get(timeout=WAIT)

    assert texts(store, "a") == ["one"]


def test_an_unavailable_store_is_tried_again() -> None:
    store = WatchedStore(unavailable(3))
    store.claim("a")

    StoreExecutor(store).submit(write("a", 0, "one")).get(timeout=WAIT)

    assert len(store.batches) == 4
    assert texts(store, "a") == ["one"]


def test_patience_ends() -> None:
    store = WatchedStore(unavailable(1_000_000))
    store.claim("a")
    access = StoreExecutor(store, patience=0.1)

    replies = [access.submit(write("a", head, "one")) for head in range(3)]

    errors = []
    for reply in replies:
        with pytest.raises(StoreUnavailable, match="locked") as caught:
            reply.get(timeout=WAIT)
        errors.append(caught.value)
    assert errors[0] is errors[1] is errors[2]
    assert texts(store, "a") == []


def test_after_an_outage_others_are_written_again() -> None:
    store = WatchedStore(unavailable(1_000_000))
    store.claim("a")
    store.claim("b")
    access = StoreExecutor(store, patience=0.0)
    with pytest.raises(StoreUnavailable):
        access.submit(write("a", 0, "lost")).get(timeout=WAIT)

    store.before = lambda batch: None
    access.submit(write("b", 0, "kept")).get(timeout=WAIT)
    with pytest.raises(StoreUnavailable):
        access.submit(write("a", 0, "behind the lost one")).get(timeout=WAIT)

    assert (texts(store, "a"), texts(store, "b")) == ([], ["kept"])


def test_what_no_store_should_raise_fails_its_batch_alone() -> None:
    def fail(batch: Sequence[Write]) -> None:
        raise ZeroDivisionError

    store = WatchedStore(fail)
    store.claim("a")
    store.claim("b")
    access = StoreExecutor(store)
    with pytest.raises(StoreError, match="ZeroDivisionError"):
        access.submit(write("a", 0, "one")).get(timeout=WAIT)

    store.before = lambda batch: None
    access.submit(write("b", 0, "two")).get(timeout=WAIT)

    assert texts(store, "b") == ["two"]


def test_closing_writes_what_waits() -> None:
    store = WatchedStore(gate := Gate())
    store.claim("a")
    access = StoreExecutor(store)
    replies = [access.submit(write("a", head, "x")) for head in range(50)]
    wait_for(gate.reached)

    assert not access.close(0.01)
    gate.opened.set()

    assert access.close(10)
    assert all(reply.done() for reply in replies)
    assert len(texts(store, "a")) == 50


def test_a_closed_access_refuses() -> None:
    access = StoreExecutor(MemoryStore())

    assert access.close(10)

    with pytest.raises(StoreUnavailable, match="closed"):
        access.submit(write("a", 0, "one")).get(timeout=WAIT)


async def test_reads_do_not_wait_for_writes() -> None:
    store = WatchedStore(gate := Gate())
    store.claim("a")
    access = StoreExecutor(store)
    waiting = access.submit(write("a", 0, "one"))
    wait_for(gate.reached)

    about = await access.read(store.info, "a")

    assert about is not None
    assert not waiting.done()
    gate.opened.set()
    await waiting


def test_a_read_fails_as_the_store_does() -> None:
    store = MemoryStore()
    store.close()

    reply = StoreExecutor(store).read(store.load, "a", upto=3)

    with pytest.raises(StoreUnavailable, match="closed"):
        reply.get(timeout=WAIT)


def test_a_store_has_one_access() -> None:
    store, other = MemoryStore(), MemoryStore()

    access = StoreExecutor.for_store(store)

    assert StoreExecutor.for_store(store) is access
    assert StoreExecutor.for_store(other) is not access
    access.close()
    assert StoreExecutor.for_store(store) is not access


def test_an_access_that_nobody_uses_goes_and_takes_its_thread_along() -> None:
    store = MemoryStore()
    store.claim("a")
    access = StoreExecutor.for_store(store)
    access.submit(write("a", 0, "one")).get(timeout=WAIT)
    ended, gone = access._writer.ended, weakref.ref(access)

    del access
    gc.collect()

    assert gone() is None
    wait_for(ended)


def test_an_idle_access_costs_no_time() -> None:
    store = MemoryStore()
    store.claim("a")
    access = StoreExecutor(store)
    others = set(threading.enumerate())
    access.submit(write("a", 0, "one")).get(timeout=WAIT)
    new = set(threading.enumerate()) - others
    (writer,) = [each for each in new if each.name == "agent-context-store-write"]
    clock = time.pthread_getcpuclockid(writer.ident or 0)
    before = time.clock_gettime(clock)

    assert not Event().wait(0.3)

    assert time.clock_gettime(clock) - before < 0.005
    assert access.close(10)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused() -> None:
    store = MemoryStore()
    store.claim("a")
    access = StoreExecutor(store)
    access.submit(write("a", 0, "one")).get(timeout=WAIT)

    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        try:
            access.submit(write("a", 1, "two"))
        except ConversationClosed:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_store_that_hangs_keeps_no_reader_of_another_one_waiting() -> None:
    hung, well = StoreExecutor(MemoryStore()), StoreExecutor(MemoryStore())
    opened = Event()
    stuck = [hung.read(wait_for, opened) for _ in range(30)]

    assert well.read(well.store.info, "a").get(timeout=WAIT / 2) is None

    opened.set()
    assert [reply.get(timeout=WAIT) for reply in stuck] == [None] * 30


def test_the_readers_of_a_store_end_with_it() -> None:
    access = StoreExecutor(MemoryStore())
    before = {each for each in threading.enumerate() if "store-read" in each.name}
    access.read(access.store.info, "a").get(timeout=WAIT)
    mine = {each for each in threading.enumerate() if "store-read" in each.name} - before

    del access
    gc.collect()

    assert mine
    join(*mine)
