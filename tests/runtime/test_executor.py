import gc
import weakref
from threading import Event

import pytest

from agent_context._runtime import Reply
from agent_context._runtime.executor import ElasticExecutor
from tests.runtime.conftest import Gate, refuse_threads
from tests.support.waiting import WAIT, wait_for, wait_until


def run(workers: ElasticExecutor) -> bool:
    done = Event()
    workers.submit(done.set)
    return done.wait(WAIT)


def run_soon(workers: ElasticExecutor) -> bool:
    done = Event()
    workers.submit(done.set)
    return done.wait(1)


def test_no_thread_is_started_before_the_first_job() -> None:
    workers = ElasticExecutor("test", size=2, keep=2, cap=4)
    assert workers.threads() == 0

    assert run(workers)

    assert workers.threads() == 2


def test_a_job_that_raises_is_logged_and_its_thread_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=1)

    workers.submit(lambda: 1 / 0)

    assert run(workers)
    assert workers.threads() == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_worker_that_waits_for_a_reply_lends_its_place() -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=2, patience=WAIT)
    reply, answer = Reply[int](), Reply[int]()
    workers.submit(lambda: answer.set(reply.get(timeout=WAIT)))

    workers.submit(lambda: reply.set(1))

    assert answer.get(timeout=WAIT) == 1


def test_a_worker_that_is_stuck_is_replaced_up_to_the_cap() -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=4, patience=0.001)
    gates = [Gate() for _ in range(4)]

    for gate in gates:
        workers.submit(gate.pass_through)

    wait_for(*(gate.entered for gate in gates))
    assert workers.threads() == 4
    for gate in gates:
        gate.opened.set()


def test_threads_that_are_too_many_end_when_the_stuck_come_back() -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=8, patience=0.001)
    gates = [Gate() for _ in range(8)]
    for gate in gates:
        workers.submit(gate.pass_through)
    wait_for(*(gate.entered for gate in gates))

    for gate in gates:
        gate.opened.set()

    # Each round ends at least one thread that is not needed.
    assert any(run(workers) and workers.threads() == 1 for _ in range(1000))


def test_a_stall_after_a_time_of_rest_is_noticed_again() -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=2, patience=0.001)
    for _ in range(20):
        gate = Gate()
        workers.submit(gate.pass_through)

        assert run(workers)

        gate.opened.set()


def test_an_idle_worker_does_not_keep_its_last_job_alive() -> None:
    class Job:
        def __call__(self) -> None:
            pass

    workers = ElasticExecutor("test", size=1, keep=1, cap=1)
    job = Job()
    gone = weakref.ref(job)
    workers.submit(job)
    del job

    assert run(workers)

    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("times", [1, 2, 3, 4])
def test_a_thread_that_fails_to_start_is_started_with_a_later_job(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = ElasticExecutor("test", size=2, keep=2, cap=4)
    first = Event()
    refuse_threads(monkeypatch, times)

    workers.submit(first.set)

    assert any(run_soon(workers) for _ in range(times + 1))
    wait_for(first)


def test_a_replacement_that_fails_to_start_is_tried_again_while_jobs_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=2, patience=0.001)
    gate = Gate()
    assert run(workers)
    refuse_threads(monkeypatch, 3)
    workers.submit(gate.pass_through)

    assert run(workers)

    gate.opened.set()


def test_it_is_logged_once_that_all_threads_are_stuck(caplog: pytest.LogCaptureFixture) -> None:
    workers = ElasticExecutor("test", size=1, keep=1, cap=2, patience=0.001)
    gates = [Gate() for _ in range(2)]
    for gate in gates:
        workers.submit(gate.pass_through)

    wait_until(lambda: "all 2 threads are stuck" in caplog.text)

    for gate in gates:
        gate.opened.set()
    assert run(workers)
    assert caplog.text.count("are stuck") == 1
