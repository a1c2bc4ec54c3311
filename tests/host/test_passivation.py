"""Who is awake: idle conversations are parked, the longest unused first, and woken when needed."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import tracemalloc

import pytest

from agent_context import (
    Append,
    Compress,
    EstimateTokens,
    Extend,
    Host,
    Incremental,
    Message,
    Send,
    SendOptions,
    SendStream,
    Subscribe,
    Summarize,
    events,
)
from agent_context.errors import ConversationClosed, StoreUnavailable
from agent_context.protocol import Len, Unsubscribe, UseBackend
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen
from tests.host.conftest import Gated, Start, at_once, until_parked
from tests.support.waiting import WAIT, wait_for


def park(host: Host) -> None:
    assert host.passivate(timeout=WAIT)


def test_an_idle_conversation_is_parked_and_goes_on_when_asked(start: Start, store: Store) -> None:
    host = start(store, idle=0.05)
    ref = host.get("c")
    ref.ask(Append(Message.user("one")))
    before = ref.actor_ref
    until_parked(host)
    about = host.info("c")
    assert about is not None
    assert about.owner is None
    assert ref.ask(Append(Message.user("two")))
    assert ref.actor_ref != before
    assert [m.text for m in ref.ask(Incremental())] == ["one", "two"]


async def test_a_parked_conversation_is_woken_for_a_task(start: Start, store: Store) -> None:
    host = start(store)
    ref = await host.aget("c")
    await ref.aask(Append(Message.user("one")))
    await asyncio.to_thread(park, host)
    assert host.active_ids() == ()
    stream = await ref.aask(SendStream(messages=[Message.user("two")]))
    async with stream:
        async for _ in stream:
            pass
    assert stream.message.text == "re: two"
    assert await ref.aask(Len()) == 3


def test_a_turn_keeps_its_conversation_awake(start: Start, store: Store) -> None:
    hold = Hold()
    host = start(store, ScriptedBackend([hold, "one", "two"]))
    ref = host.get("c")
    running = ref.ask(SendStream(messages=[Message.user("a")]))
    waiting = ref.ask(SendStream(messages=[Message.user("b")]))
    wait_for(hold.entered)
    park(host)
    assert host.active_ids() == ("c",)
    assert {finding.name: finding.text for finding in host.health()}["turns"] == (
        "1 turns run, 1 wait"
    )
    hold.release()
    for stream in (running, waiting):
        list(stream)
    park(host)
    assert host.active_ids() == ()
    assert ref.ask(Len()) == 4


def test_a_compression_keeps_its_conversation_awake(start: Start, store: Store) -> None:
    hold = Hold()
    host = start(store, ScriptedBackend([hold, "a summary"]), compression=Summarize(keep=1))
    ref = host.get("c")
    ref.ask(Extend([Message.user(f"{i} " + "word " * 60) for i in range(6)]))
    compressing = ref.actor_ref.ask(Compress(), block=False)
    wait_for(hold.entered)
    park(host)
    assert host.active_ids() == ("c",)
    hold.release()
    compressing.get(timeout=WAIT)
    park(host)
    assert host.active_ids() == ()


def test_a_subscriber_keeps_its_conversation_awake(start: Start, store: Store, seen: Seen) -> None:
    host = start(store, on_change=lambda _: None)
    host.subscribe(lambda _: None)
    ref = host.get("c")
    token = ref.ask(Subscribe(seen))
    park(host)
    assert host.active_ids() == ("c",)
    ref.ask(Append(Message.user("one")))
    seen.wait_for(events.Appended)
    ref.ask(Unsubscribe(token))
    park(host)
    assert host.active_ids() == ()


def test_what_a_conversation_was_told_outlives_its_parking(start: Start, store: Store) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(UseBackend(ScriptedBackend(["from the other one"])))
    park(host)
    assert ref.ask(Send(messages=[Message.user("hi")])).message.text == "from the other one"


def test_a_fork_has_its_parents_settings_after_parking_too(start: Start, store: Store) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(UseBackend(ScriptedBackend(["from the other one"])))
    fork = host.fork("c")
    park(host)
    assert fork.ask(Send(messages=[Message.user("hi")])).message.text == "from the other one"


def test_the_longest_unused_is_parked_first(start: Start, store: Store) -> None:
    host = start(store, live=3)
    for name in "abc":
        host.get(name).ask(Len())
    host.get("a").ask(Len())
    host.get("d").ask(Len())
    with host._registry._changed:
        assert host._registry._changed.wait_for(lambda: len(host._registry._slots) == 3, WAIT)
    assert sorted(host.active_ids()) == ["a", "c", "d"]


def test_no_more_are_awake_than_may_be(start: Start, store: Store) -> None:
    host = start(store, live=10)
    for number in range(60):
        host.get(f"c{number}").ask(Append(Message.user("hi")))
        assert len(host.active_ids()) <= 10


def test_what_is_busy_is_never_parked_for_want_of_room(start: Start, store: Store) -> None:
    hold = Hold()
    host = start(store, ScriptedBackend([hold, "1", "2", "3", "4"]), live=2)
    refs = [host.get(name) for name in "abcd"]
    streams = [ref.ask(SendStream(messages=[Message.user("hi")])) for ref in refs]
    wait_for(hold.entered)
    host._registry.evict_idle()
    hold.release()
    for stream in streams:
        list(stream)
    assert [ref.ask(Len()) for ref in refs] == [2] * 4


def test_nothing_is_lost_or_reordered_while_conversations_come_and_go(
    start: Start, store: Store
) -> None:
    host = start(store, live=3)
    talks = [f"c{i}" for i in range(12)]

    def work(number: int) -> None:
        refs = [host.get(name) for name in talks]
        for turn in range(15):
            for ref in refs:
                said = Message.user(f"{number} {turn}")
                if turn % 3:
                    ref.tell(Append(said))
                else:
                    ref.ask(Append(said), timeout=WAIT)

    at_once(6, work)
    for name in talks:
        said = [m.text.split() for m in host.get(name).ask(Incremental(), timeout=WAIT)]
        for number in map(str, range(6)):
            turns = [int(turn) for who, turn in said if who == number]
            assert turns == list(range(15)), (name, number)


def test_what_was_told_before_a_conversation_was_there_comes_in_order(start: Start) -> None:
    store = Gated()
    host = start(store)
    ref = host.get("c")
    park(host)
    store.gate.clear()
    for i in range(50):
        ref.tell(Append(Message.user(str(i))))
    store.gate.set()
    assert [m.text for m in ref.ask(Incremental())] == [str(i) for i in range(50)]


async def test_a_turn_that_nobody_waits_for_any_more_is_cancelled(start: Start, seen: Seen) -> None:
    store = Gated()
    host = start(store, ScriptedBackend([Hold(), "never"]))
    host.subscribe(seen)
    ref = await host.aget("c")
    await asyncio.to_thread(park, host)
    store.gate.clear()
    store.wanted.clear()
    task = asyncio.create_task(ref.aask(Send(messages=[Message.user("hi")])))
    await asyncio.to_thread(wait_for, store.wanted)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    store.gate.set()
    await asyncio.to_thread(seen.wait_for, events.Cancelled)


def test_who_asks_a_conversation_that_can_not_be_woken_is_told(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    store = Gated()
    host = start(store)
    ref = host.get("c")
    park(host)
    store.error = StoreUnavailable("gone fishing")
    with pytest.raises(StoreUnavailable, match="fishing"):
        ref.ask(Len())
    with caplog.at_level(logging.ERROR):
        ref.tell(Append(Message.user("hi")))
        with pytest.raises(StoreUnavailable):
            ref.ask(Len())
    assert "fishing" in caplog.text
    store.error = None
    assert ref.ask(Len()) == 0


def test_a_stop_while_it_is_being_woken_is_obeyed(start: Start) -> None:
    store = Gated()
    host = start(store)
    ref, other = host.get("c"), host.get("c")
    park(host)
    ref.tell(Append(Message.user("hi")))
    ref.stop()
    with pytest.raises(ConversationClosed):
        ref.ask(Len())
    assert other.ask(Len()) == 1


def test_memory_is_flat_over_many_wakings(start: Start) -> None:
    store = MemoryStore()
    host = start(store)
    refs = [host.get(f"c{i}") for i in range(20)]
    for ref in refs:
        ref.ask(Extend([Message.user("word " * 40) for _ in range(20)]))

    def cycles(count: int) -> int:
        for _ in range(count):
            park(host)
            for ref in refs:
                ref.ask(Len())
        park(host)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = cycles(5)
        after = cycles(30)
    finally:
        tracemalloc.stop()
    # Of 600 wakings: a leak of one object each would be more.
    assert after - before < 30_000
    assert host.active_ids() == ()


def test_a_known_conversation_takes_nothing_in_the_host(start: Start) -> None:
    host = start(MemoryStore())
    for i in range(50):
        host.get(f"c{i}").ask(Append(Message.user("hi")))
    park(host)
    registry = host._registry
    assert (
        len(registry._slots) == len(registry._remembered_configs) == len(registry.subscribers) == 0
    )


def test_an_estimate_under_way_does_not_need_its_conversation(start: Start, store: Store) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(Append(Message.user("hi")))
    estimate = ref.actor_ref.ask(EstimateTokens(SendOptions()), block=False)
    park(host)
    assert estimate.get(timeout=WAIT).total > 0


def test_what_has_just_been_woken_is_parked_when_it_says_so(start: Start) -> None:
    host = start(MemoryStore())
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(300):
            host.get(f"c{number}").ask(Len())
            park(host)
            assert host.active_ids() == ()
    finally:
        sys.setswitchinterval(interval)
