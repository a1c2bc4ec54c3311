"""A lock that belongs to no loop."""

from __future__ import annotations

import asyncio
from threading import Event, Thread

import pytest

from agent_context._runtime import FairAsyncLock
from tests.support.waiting import WAIT, join, wait_for


async def test_who_asks_first_is_let_in_first() -> None:
    fifo = FairAsyncLock()
    order: list[int] = []

    async def work(number: int) -> None:
        leave = await fifo.acquire()
        order.append(number)
        await asyncio.sleep(0)
        leave()

    await asyncio.gather(*(work(number) for number in range(10)))

    assert order == list(range(10))
    assert not fifo.busy


async def test_who_is_cancelled_while_waiting_holds_up_nobody() -> None:
    fifo = FairAsyncLock()
    leave = await fifo.acquire()
    second, third = (asyncio.create_task(fifo.acquire()) for _ in range(2))
    await asyncio.sleep(0)

    second.cancel()
    await asyncio.wait([second])
    assert not third.done()
    leave()

    async with asyncio.timeout(WAIT):
        (await third)()
    assert not fifo.busy


async def test_any_number_may_be_cancelled_while_waiting() -> None:
    fifo = FairAsyncLock()
    leave = await fifo.acquire()
    waiting = [asyncio.create_task(fifo.acquire()) for _ in range(5000)]
    last = asyncio.create_task(fifo.acquire())
    await asyncio.sleep(0)

    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    leave()

    async with asyncio.timeout(WAIT):
        (await last)()
    assert not fifo.busy


async def test_leaving_twice_lets_in_one() -> None:
    fifo = FairAsyncLock()
    leave = await fifo.acquire()
    leave()
    leave()

    other = await fifo.acquire()

    assert fifo.busy
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await fifo.acquire()
    other()
    async with asyncio.timeout(WAIT):
        await fifo.wait_idle()


async def test_loops_of_several_threads_wait_for_each_other() -> None:
    fifo = FairAsyncLock()
    leave = await fifo.acquire()
    asked, entered = Event(), Event()

    async def elsewhere() -> None:
        waiting = asyncio.ensure_future(fifo.acquire())
        await asyncio.sleep(0)
        asked.set()
        (await waiting)()
        entered.set()

    thread = Thread(target=lambda: asyncio.run(elsewhere()))
    thread.start()
    await asyncio.to_thread(wait_for, asked)
    assert not entered.is_set()
    leave()

    await asyncio.to_thread(wait_for, entered)
    join(thread)
