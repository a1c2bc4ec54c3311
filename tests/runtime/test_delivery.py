import threading
from threading import Event
from typing import Any

import pytest

from agent_context._runtime import Reply, SubscriberQueue, in_scope
from agent_context.errors import DeadlockError
from tests.runtime.conftest import Gate
from tests.support.waiting import WAIT, join, wait_for


def stuck(gate: Gate) -> "SubscriberQueue[Any]":
    """A subscriber that holds its first event until the gate opens."""
    delivery: SubscriberQueue[Any] = SubscriberQueue(lambda _: gate.pass_through(), capacity=3)
    delivery.put("first")
    wait_for(gate.entered)
    return delivery


def test_events_arrive_in_order_one_at_a_time() -> None:
    got: list[int] = []
    delivery: SubscriberQueue[int] = SubscriberQueue(got.append)

    for number in range(1000):
        delivery.put(number)

    assert delivery.flush(WAIT)
    assert got == list(range(1000))


def test_events_of_many_producers_all_arrive() -> None:
    got: list[int] = []
    delivery: SubscriberQueue[int] = SubscriberQueue(got.append)
    threads = [threading.Thread(target=_put_thousand, args=(delivery,)) for _ in range(4)]

    for thread in threads:
        thread.start()
    join(*threads)

    assert delivery.flush(WAIT)
    assert sorted(got) == sorted([*range(1000)] * 4)


def _put_thousand(delivery: SubscriberQueue[int]) -> None:
    for number in range(1000):
        delivery.put(number)


def test_callbacks_run_outside_the_producers_thread() -> None:
    reply: Reply[str] = Reply()

    delivery = SubscriberQueue[str](lambda _: reply.set(threading.current_thread().name))
    delivery.put("event")

    assert reply.get(timeout=WAIT).startswith("agent-context-events")


def test_a_callback_that_raises_is_logged_and_gets_the_next_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    got: list[int] = []
    delivery: SubscriberQueue[int] = SubscriberQueue(lambda event: got.append(1 // event))

    for number in (0, 1):
        delivery.put(number)

    assert delivery.flush(WAIT)
    assert got == [1]
    assert "ZeroDivisionError" in caplog.text


def test_a_subscriber_too_far_behind_is_dropped_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gate, dropped = Gate(), Reply[int]()
    delivery: SubscriberQueue[int] = SubscriberQueue(
        lambda _: gate.pass_through(), capacity=3, on_drop=dropped.set
    )
    delivery.put(0)
    wait_for(gate.entered)

    for number in range(10):
        delivery.put(number)

    assert delivery.closed
    assert dropped.get(timeout=WAIT) == 4
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    gate.opened.set()


def test_a_subscriber_without_a_listener_is_dropped_too() -> None:
    gate = Gate()
    delivery = stuck(gate)

    for number in range(4):
        delivery.put(number)

    assert delivery.closed
    gate.opened.set()


def test_nothing_is_delivered_after_the_close() -> None:
    got: list[int] = []
    delivery: SubscriberQueue[int] = SubscriberQueue(got.append)

    delivery.close()
    delivery.put(1)

    assert delivery.flush(WAIT)
    assert got == []


def test_a_close_forgets_what_waits_and_tells_who_waits_for_it() -> None:
    gate, waited = Gate(), Reply[bool]()
    delivery = stuck(gate)
    delivery.put("forgotten")
    waiter = threading.Thread(target=lambda: waited.set(delivery.flush(WAIT)))
    waiter.start()
    while len(delivery._queue) < 2:
        assert not waited.done()

    delivery.close()

    assert waited.get(timeout=WAIT) is False
    gate.opened.set()


def test_a_flush_that_takes_too_long_says_so() -> None:
    gate = Gate()

    assert not stuck(gate).flush(0.001)

    gate.opened.set()


def test_a_flush_from_inside_the_callback_is_refused() -> None:
    refused = Event()

    def flush(_: str) -> None:
        with pytest.raises(DeadlockError):
            delivery.flush()
        refused.set()

    delivery: SubscriberQueue[str] = SubscriberQueue(flush)
    delivery.put("event")

    wait_for(refused)


def test_a_callback_runs_inside_its_key() -> None:
    reply: Reply[bool] = Reply()

    delivery = SubscriberQueue[str](lambda _: reply.set(in_scope("talk")), key="talk")
    delivery.put("event")

    assert reply.get(timeout=WAIT)
    assert not in_scope("talk")


def test_stuck_subscribers_do_not_hold_up_the_others() -> None:
    gates = [Gate() for _ in range(100)]
    deliveries = [stuck(gate) for gate in gates]
    quick: SubscriberQueue[int] = SubscriberQueue(int)

    quick.put(1)

    assert quick.flush(WAIT)
    for gate in gates:
        gate.opened.set()
    assert all(delivery.flush(WAIT) for delivery in deliveries)


def test_a_subscriber_with_many_events_lets_others_have_theirs() -> None:
    got: list[str] = []
    busy: SubscriberQueue[str] = SubscriberQueue(lambda _: got.append("busy"))
    for _ in range(5000):
        busy.put("event")
    quick: SubscriberQueue[str] = SubscriberQueue(got.append)

    quick.put("quick")

    assert quick.flush(WAIT)
    assert busy.flush(WAIT)
    assert got.count("busy") == 5000
