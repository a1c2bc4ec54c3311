import asyncio
import queue
import sys
import traceback
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, cast

import pykka
import pytest

from agent_context._runtime import Deferred, Failure, Reply, future
from tests.runtime.conftest import Gate, refuse_threads
from tests.support.waiting import WAIT, wait_for


def failed(error: BaseException) -> Reply[Any]:
    reply: Reply[Any] = Reply()
    reply.set(Failure(error))
    return reply


def in_thread(function: Callable[..., object], *args: object) -> Thread:
    thread = Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def test_a_value_set_elsewhere_ends_the_wait() -> None:
    reply: Reply[int] = Reply()

    in_thread(reply.set, 3)

    assert reply.get(timeout=WAIT) == 3
    assert reply.done()


@pytest.mark.parametrize("timeout", [0, 0.001, -1])
def test_a_wait_that_takes_too_long_ends_with_pykkas_timeout(timeout: float) -> None:
    reply: Reply[int] = Reply()

    with pytest.raises(pykka.Timeout):
        reply.get(timeout=timeout)

    reply.set(1)
    assert reply.get(timeout=timeout) == 1


def test_a_timeout_longer_than_a_lock_can_wait_is_accepted() -> None:
    reply: Reply[int] = Reply()

    in_thread(reply.set, 1)

    assert reply.get(timeout=1e300) == 1


def test_a_long_wait_looks_for_signals_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    reply, waits = Reply[int](), list[float]()

    class Latch:
        """Stays shut three times."""

        def acquire(self, timeout: float = -1) -> bool:
            waits.append(timeout)
            if len(waits) == 5:
                reply.set(1)
            return len(waits) in {1, 5}

        def release(self) -> None:
            pass

    monkeypatch.setattr(future, "Lock", Latch)

    assert reply.get() == 1
    assert waits[1:] == [future.LONGEST_WAIT] * 4


@pytest.mark.parametrize("again", [4, Failure(ValueError()), Deferred(Reply())])
def test_a_second_value_is_refused(again: "int | Failure | Deferred") -> None:
    reply: Reply[int] = Reply()
    reply.set(3)

    with pytest.raises(queue.Full):
        reply.set(again)

    assert reply.get() == 3


def test_an_answer_to_a_reply_that_was_given_up_is_ignored() -> None:
    reply: Reply[int] = Reply()
    assert reply.set_error(TimeoutError())

    reply.set(3)
    reply.set(Deferred(Reply()))
    reply.set_exception((ValueError, ValueError(), None))

    with pytest.raises(TimeoutError):
        reply.get()


def test_a_reply_that_is_settled_or_promised_cannot_be_given_up() -> None:
    settled: Reply[int] = Reply()
    settled.set(3)
    promised: Reply[int] = Reply()
    promised.set(Deferred(Reply()))

    assert not settled.set_error(TimeoutError())
    assert not promised.set_error(TimeoutError())
    assert not promised.done()


def test_an_exception_type_alone_is_raised_as_an_instance() -> None:
    reply: Reply[int] = Reply()
    reply.set_exception((KeyError, None, None))

    with pytest.raises(KeyError):
        reply.get()


def test_setting_no_exception_outside_of_a_handler_still_fails_the_reply() -> None:
    reply: Reply[int] = Reply()
    reply.set_exception()

    with pytest.raises(RuntimeError):
        reply.get()


def test_an_error_keeps_its_traceback_which_does_not_grow() -> None:
    try:
        raise ValueError("here")  # noqa: TRY301
    except ValueError as error:
        reply = failed(error)

    def frames() -> list[str]:
        with pytest.raises(ValueError, match="here") as caught:
            reply.get()
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    first = frames()
    assert "test_an_error_keeps_its_traceback_which_does_not_grow" in first
    assert frames() == frames() == first


def test_a_chained_reply_is_settled_with_the_one_it_waits_for() -> None:
    inner: Reply[int] = Reply()
    outer: Reply[int] = Reply()
    outer.set(Deferred(inner))
    assert not outer.done()

    inner.set(7)

    assert outer.get(timeout=0) == 7


def test_a_chained_reply_fails_with_the_one_it_waits_for() -> None:
    outer: Reply[int] = Reply()

    outer.set(Deferred(failed(ValueError("inner"))))

    with pytest.raises(ValueError, match="inner"):
        outer.get()


def test_a_reply_can_be_chained_to_a_mapped_one() -> None:
    inner: Reply[int] = Reply()
    outer: Reply[int] = Reply()
    outer.set(Deferred(inner.map(lambda value: value + 1)))  # type: ignore[arg-type]

    inner.set(7)

    assert outer.get(timeout=WAIT) == 8


def test_a_callback_is_called_once_when_the_reply_is_settled() -> None:
    calls: list[Any] = []
    reply: Reply[int] = Reply()
    reply.add_done_callback(calls.append)
    assert calls == []

    reply.set(1)

    assert calls == [reply]


def test_a_callback_on_a_settled_reply_is_called_at_once() -> None:
    calls: list[Any] = []
    reply = failed(ValueError())

    reply.add_done_callback(calls.append)

    assert calls == [reply]


def test_callbacks_are_called_in_order_even_if_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    reply: Reply[int] = Reply()
    reply.add_done_callback(lambda _: calls.append(1))
    reply.add_done_callback(lambda _: sys.exit("broken"))
    reply.add_done_callback(lambda _: calls.append(2))

    reply.set(1)

    assert calls == [1, 2]
    assert "SystemExit: broken" in caplog.text


def note_and_settle(
    order: list[int], number: int, following: Reply[int]
) -> Callable[[Reply[int]], None]:
    def call(_: Reply[int]) -> None:
        order.append(number)
        following.set(3)

    return call


@pytest.mark.parametrize("length", [200, 20_000])
def test_replies_that_settle_one_another_may_form_a_chain_of_any_length(length: int) -> None:
    first: Reply[int] = Reply()
    order: list[int] = []
    last = first
    for number in range(length):
        following: Reply[int] = Reply()
        last.add_done_callback(note_and_settle(order, number, following))
        last = following

    first.set(3)

    assert last.get(timeout=0) == 3
    assert order == [*range(length)]


def test_replies_promised_one_after_the_other_may_form_a_chain_of_any_length() -> None:
    first: Reply[int] = Reply()
    last = first
    for _ in range(5000):
        following: Reply[int] = Reply()
        following.set(Deferred(last))
        last = following

    first.set(3)

    assert last.get(timeout=0) == 3


def test_a_callback_may_add_another_to_a_settled_reply_without_end() -> None:
    reply: Reply[None] = Reply()
    reply.set(None)
    calls: list[int] = []

    def again(settled: Reply[None]) -> None:
        calls.append(1)
        if len(calls) < 5000:
            settled.add_done_callback(again)

    reply.add_done_callback(again)

    assert len(calls) == 5000


def test_a_mapped_reply_without_a_thread_to_compute_it_tells_its_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply: Reply[int] = Reply()
    reply.set(1)
    mapped = cast("Reply[int]", reply.map(abs))
    told: list[BaseException | None] = []
    refuse_threads(monkeypatch)

    mapped.add_done_callback(lambda settled: told.append(settled.error()))

    assert "can't start" in str(told[0])


def test_a_callback_on_a_mapped_reply_is_called_without_a_get() -> None:
    called = Event()
    reply: Reply[int] = Reply()
    mapped = reply.map(lambda value: value * 2)
    assert isinstance(mapped, Reply)
    mapped.add_done_callback(lambda _: called.set())

    reply.set(2)

    wait_for(called)
    assert mapped.get(timeout=0) == 4


def test_a_mapped_reply_whose_function_raises_tells_its_callbacks() -> None:
    called = Event()
    reply: Reply[int] = Reply()
    mapped = reply.map(lambda value: 1 / value)
    assert isinstance(mapped, Reply)
    mapped.add_done_callback(lambda _: called.set())

    reply.set(0)

    wait_for(called)
    with pytest.raises(ZeroDivisionError):
        mapped.get(timeout=0)


def test_a_get_does_not_outwait_its_timeout_while_another_computes() -> None:
    gate = Gate()
    reply: Reply[int] = Reply()
    reply.set(1)
    mapped = reply.map(lambda _: gate.pass_through())
    in_thread(mapped.get)
    wait_for(gate.entered)

    with pytest.raises(pykka.Timeout):
        mapped.get(timeout=0.01)

    gate.opened.set()
    assert mapped.get(timeout=WAIT) is None


def test_a_settled_reply_takes_no_get_hook() -> None:
    reply: Reply[int] = Reply()
    reply.set(3)

    with pytest.raises(queue.Full):
        reply.set_get_hook(lambda _: 4)


def test_awaiting_does_not_block_the_loop() -> None:
    reply: Reply[int] = Reply()

    async def main() -> tuple[int, int, int]:
        loop = asyncio.get_running_loop()
        loop.call_soon(in_thread, reply.set, 5)
        one, two, three = await asyncio.gather(reply, reply, asyncio.wait_for(reply, WAIT))
        return one, two, three

    assert asyncio.run(main()) == (5, 5, 5)


def test_an_awaited_error_is_raised() -> None:
    async def main() -> None:
        await failed(ValueError("awaited"))

    with pytest.raises(ValueError, match="awaited"):
        asyncio.run(main())


def test_awaiting_a_mapped_reply_does_not_block_the_loop() -> None:
    reply: Reply[int] = Reply()

    async def main() -> str:
        asyncio.get_running_loop().call_soon(reply.set, 5)
        return await reply.map(str)

    assert asyncio.run(main()) == "5"


def test_a_cancelled_wait_leaves_the_reply_as_it_was() -> None:
    reply: Reply[int] = Reply()

    async def main() -> int:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reply, 0.001)
        assert reply._callbacks == []
        reply.set(6)
        return await reply

    assert asyncio.run(main()) == 6


def test_a_reply_settled_just_as_the_wait_is_cancelled_hurts_nobody() -> None:
    reply: Reply[int] = Reply()

    async def main() -> None:
        task = asyncio.ensure_future(reply)
        await asyncio.sleep(0)
        reply.set(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(main())


def test_a_reply_may_be_settled_after_the_loop_of_its_waiter_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reply: Reply[int] = Reply()
    loop = asyncio.new_event_loop()

    async def wait() -> None:
        await reply

    waiter = wait()
    loop.call_soon(lambda: (waiter.send(None), loop.stop()))
    loop.run_forever()
    loop.close()

    reply.set(1)

    assert caplog.text == ""
    waiter.close()
