import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from threading import Event
from typing import Any

import pytest

from agent_context._runtime import IoTask, IoThread, Reply, io_loop
from agent_context.errors import DeadlockError
from tests.support.waiting import WAIT, wait_for

Factory = Callable[[], Coroutine[Any, Any, None]]


async def nothing() -> None:
    pass


async def forever() -> None:
    await asyncio.Event().wait()


def throwing(error: BaseException) -> Factory:
    async def throw() -> None:
        raise error

    return throw


def saying(reply: "Reply[Any]", function: Callable[[], object]) -> Factory:
    async def say() -> None:
        reply.set(function())

    return say


def holding(entered: Event) -> Factory:
    async def hold() -> None:
        entered.set()
        await forever()

    return hold


def test_jobs_run_on_one_daemon_thread(io: IoThread) -> None:
    replies: list[Reply[threading.Thread]] = [Reply(), Reply()]

    for reply in replies:
        io.spawn(saying(reply, threading.current_thread))

    first, second = [reply.get(timeout=WAIT) for reply in replies]
    assert first is second
    assert first.daemon


def test_a_job_tells_when_it_is_done(io: IoThread) -> None:
    done: Reply[IoTask] = Reply()

    job = io.spawn(nothing)
    job.add_done_callback(done.set)

    assert done.get(timeout=WAIT) is job
    assert job.wait(0)
    assert job.done()
    assert not job.cancelled()


def test_a_running_job_can_be_cancelled_from_another_thread(io: IoThread) -> None:
    entered = Event()
    job = io.spawn(holding(entered))
    wait_for(entered)
    assert not job.done()
    assert not job.cancelled()

    job.cancel()

    wait_for(job)
    assert job.cancelled()


def test_cancelling_a_job_that_is_done_changes_nothing(io: IoThread) -> None:
    job = io.spawn(nothing)
    wait_for(job)

    job.cancel()

    assert io.offload(int).get(timeout=WAIT) == 0
    assert not job.cancelled()


def test_waiting_for_a_job_that_takes_longer_says_so(io: IoThread) -> None:
    assert not io.spawn(forever).wait(0)


@pytest.mark.parametrize("error", [ValueError("oh"), SystemExit("oh"), KeyboardInterrupt("oh")])
def test_a_job_that_raises_is_logged_and_the_loop_goes_on(
    io: IoThread, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    wait_for(io.spawn(throwing(error)))

    wait_for(io.spawn(nothing))
    assert type(error).__name__ in caplog.text
    assert "Traceback" in caplog.text


def test_a_factory_that_raises_is_logged_too(
    io: IoThread, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Coroutine[Any, Any, None]:
        raise ValueError("no coroutine")

    wait_for(io.spawn(broken))

    assert "no coroutine" in caplog.text


def test_an_interruption_from_elsewhere_does_not_end_the_loop(
    io: IoThread, caplog: pytest.LogCaptureFixture
) -> None:
    async def let_out() -> None:
        asyncio.get_running_loop().call_soon(lambda: (_ for _ in ()).throw(SystemExit("out")))

    wait_for(io.spawn(let_out))

    wait_for(io.spawn(nothing))
    wait_for(io.spawn(nothing))
    assert "SystemExit: out" in caplog.text


def test_starts_are_paced_so_that_others_get_their_turn_between_them() -> None:
    io, ticks, begun = IoThread(pace=8), [0], []
    ready = Event()

    async def begin() -> None:
        begun.append(ticks[0])

    async def tick() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            ticks[0] += 1
            loop.call_soon(again)

        again()
        ready.set()

    io.spawn(tick)
    wait_for(ready)
    jobs = [io.spawn(begin) for _ in range(200)]
    wait_for(*(job for job in jobs))

    assert max(begun.count(number) for number in set(begun)) <= 8
    assert io.shutdown(WAIT)


def test_only_so_many_jobs_run_at_once_and_the_others_wait_in_order() -> None:
    io, order = IoThread(max_jobs=1), list[int]()
    entered = Event()

    async def note(number: int) -> None:
        order.append(number)

    first = io.spawn(holding(entered))
    jobs = [io.spawn(partial(note, number)) for number in range(10)]
    wait_for(entered)
    assert order == []

    first.cancel()

    wait_for(jobs[-1])
    assert order == list(range(10))
    assert io.shutdown(WAIT)


def test_a_waiting_job_that_is_cancelled_ends_without_running() -> None:
    io, entered, ran = IoThread(max_jobs=1), Event(), Event()
    done: Reply[IoTask] = Reply()
    io.spawn(holding(entered))
    waiting = io.spawn(holding(ran))
    waiting.add_done_callback(done.set)
    wait_for(entered)

    waiting.cancel()

    assert done.get(timeout=WAIT).cancelled()
    assert not ran.is_set()
    assert io.shutdown(WAIT)


def test_a_job_runs_in_the_context_of_who_spawned_it(io: IoThread) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    reply: Reply[str] = Reply()

    variable.set("mine")
    io.spawn(saying(reply, variable.get))

    assert reply.get(timeout=WAIT) == "mine"


def test_a_delayed_call_is_made_on_the_loop(io: IoThread) -> None:
    reply: Reply[str] = Reply()

    io.call_later(0.001, lambda: reply.set(threading.current_thread().name))

    assert reply.get(timeout=WAIT) == "agent-context-io"


def test_a_delayed_call_can_be_cancelled_from_another_thread(io: IoThread) -> None:
    called, later = Event(), Event()

    io.call_later(0.01, called.set).cancel()
    io.call_later(0.02, later.set)

    wait_for(later)
    assert not called.is_set()


def test_a_delayed_call_that_raises_is_logged(
    io: IoThread, caplog: pytest.LogCaptureFixture
) -> None:
    later = Event()

    io.call_later(0, lambda: 1 / 0)
    io.call_later(0.001, later.set)

    wait_for(later)
    assert "ZeroDivisionError" in caplog.text


def test_cpu_work_is_done_beside_the_loop(io: IoThread) -> None:
    reply: Reply[str] = Reply()

    async def work() -> None:
        reply.set((await io.offload(threading.current_thread)).name)

    io.spawn(work)

    assert reply.get(timeout=WAIT).startswith("agent-context-cpu")


def test_cpu_work_that_fails_fails_its_reply(io: IoThread) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        io.offload(int, "x").get(timeout=WAIT)


def test_waiting_for_a_reply_on_the_loop_is_refused_at_once(io: IoThread) -> None:
    reply: Reply[str] = Reply()

    async def block() -> None:
        with pytest.raises(DeadlockError):
            Reply[int]().get(timeout=WAIT)
        reply.set("refused")

    io.spawn(block)

    assert reply.get(timeout=WAIT) == "refused"


def test_a_shutdown_cancels_what_waits_and_what_runs() -> None:
    io, entered = IoThread(max_jobs=1), Event()
    running, waiting = io.spawn(holding(entered)), io.spawn(nothing)
    wait_for(entered)

    assert io.shutdown(WAIT)

    wait_for(running)
    wait_for(waiting)
    assert running.cancelled()
    assert waiting.cancelled()
    running.cancel()


def test_a_loop_that_was_shut_down_starts_again_when_it_is_used() -> None:
    io = IoThread()
    wait_for(io.spawn(nothing))
    timer = io.call_later(WAIT, list)
    assert io.shutdown(WAIT)

    timer.cancel()
    wait_for(io.spawn(nothing))

    assert io.shutdown(WAIT)
    assert io.shutdown(0)


def test_a_shutdown_says_when_a_job_will_not_end() -> None:
    io, entered, stubborn = IoThread(), Event(), Event()

    async def hold() -> None:
        entered.set()
        assert await asyncio.get_running_loop().run_in_executor(None, stubborn.wait, WAIT)

    io.spawn(hold)
    wait_for(entered)

    assert not io.shutdown(0.01)

    stubborn.set()


def test_the_loop_can_be_shut_down_from_itself() -> None:
    io, reply = IoThread(), Reply[bool]()

    io.spawn(saying(reply, io.shutdown))

    assert reply.get(timeout=WAIT) is False


def test_there_is_one_loop_for_the_process() -> None:
    assert io_loop() is io_loop()


def test_without_uvloop_the_loop_is_asyncios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    io, reply = IoThread(), Reply[str]()

    io.spawn(saying(reply, lambda: type(asyncio.get_running_loop()).__module__))

    assert reply.get(timeout=WAIT).startswith("asyncio")
    assert io.shutdown(WAIT)
