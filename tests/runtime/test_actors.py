import asyncio
import gc
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from threading import Barrier, Thread
from typing import Any

import pykka
import pytest
from pykka import ActorDeadError, ActorRef, ActorRegistry

from agent_context._runtime import PoolActor, Reply, find_actor, peek_idle, post
from agent_context._runtime.actor import dispatcher
from agent_context.errors import MailboxFull
from tests.runtime.conftest import Gate, Recorder
from tests.support.waiting import WAIT, join, wait_for, wait_until

INTERRUPTIONS = [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit]


def ask(ref: ActorRef[Any], message: object) -> object:
    answer: object = ref.ask(message, timeout=WAIT)
    return answer


def throw(error: type[BaseException]) -> None:
    raise error


def messages_of(ref: ActorRef[Any]) -> list[Any]:
    return list(ref.proxy().got.get(timeout=WAIT))


def test_messages_are_handled_in_order(plain: type[Recorder]) -> None:
    ref = plain.start()

    for number in range(1000):
        ref.tell(number)

    assert messages_of(ref) == list(range(1000))


def test_messages_sent_before_the_start_are_handled_after_on_start() -> None:
    class Early(PoolActor):
        def __init__(self) -> None:
            super().__init__()
            self.got: list[str] = []
            self.actor_ref.tell("early")

        def on_start(self) -> None:
            self.got.append("started")

        def on_receive(self, message: str) -> None:
            self.got.append(message)

    assert messages_of(Early.start()) == ["started", "early"]


def test_an_ask_is_answered_when_the_reply_that_the_handler_returned_is(
    ref: ActorRef[Recorder],
) -> None:
    later: Reply[str] = Reply()
    answer = ref.ask(lambda: later, block=False)
    assert ask(ref, "still here") == "still here"
    assert not later.done()

    later.set("at last")

    assert answer.get(timeout=WAIT) == "at last"


def test_an_ask_that_fails_leaves_the_actor_alive(ref: ActorRef[Recorder]) -> None:
    with pytest.raises(ValueError, match="no"):
        ask(ref, partial(int, "no"))

    assert ask(ref, "alive") == "alive"


def test_a_tell_that_fails_is_logged_and_leaves_the_actor_alive(
    ref: ActorRef[Recorder], caplog: pytest.LogCaptureFixture
) -> None:
    ref.tell(partial(int, "no"))

    assert ask(ref, "alive") == "alive"
    assert "ValueError" in caplog.text


def test_a_proxy_call_that_fails_leaves_the_actor_alive(ref: ActorRef[Recorder]) -> None:
    with pytest.raises(RuntimeError):
        ref.proxy().on_receive(partial(throw, SystemExit)).get(timeout=WAIT)

    assert ask(ref, "alive") == "alive"


@pytest.mark.parametrize("error", INTERRUPTIONS)
def test_an_interruption_in_a_handler_fails_its_asker_and_nobody_else(
    guarded: type[Recorder], error: type[BaseException]
) -> None:
    ref, other = guarded.start(), guarded.start()

    with pytest.raises(RuntimeError) as caught:
        ask(ref, partial(throw, error))
    ref.tell(partial(throw, error))

    assert isinstance(caught.value.__cause__, error)
    assert ask(ref, "alive") == ask(other, "alive") == "alive"


def test_an_interruption_in_an_unguarded_handler_still_answers_the_asker(
    plain: type[Recorder],
) -> None:
    ref = plain.start()

    with pytest.raises(ActorDeadError):
        ask(ref, partial(throw, SystemExit))

    assert not ref.is_alive()


def test_an_interruption_in_on_start_stops_the_actor_only(plain: type[Recorder]) -> None:
    broken: Any = type("Broken", (plain,), {"on_start": lambda _: throw(SystemExit)})

    with pytest.raises(ActorDeadError):
        ask(broken.start(), "hello")

    assert ask(plain.start(), "alive") == "alive"


def test_an_interruption_in_on_stop_stops_the_actor_only(guarded: type[Recorder]) -> None:
    broken: Any = type("Broken", (guarded,), {"on_stop": lambda _: throw(SystemExit)})
    ref, other = broken.start(), guarded.start()

    with pytest.raises(RuntimeError):
        ref.stop(timeout=WAIT)

    assert not ref.is_alive()
    assert ask(other, "alive") == "alive"


def test_an_interruption_in_an_unguarded_on_stop_answers_who_asked_for_the_stop(
    plain: type[Recorder],
) -> None:
    broken: Any = type("Broken", (plain,), {"on_stop": lambda _: throw(SystemExit)})

    assert not broken.start().stop(timeout=WAIT)

    assert ask(plain.start(), "alive") == "alive"


def test_an_ask_that_races_a_stop_is_answered(plain: type[Recorder]) -> None:
    refs, askers = [plain.start() for _ in range(1000)], 3
    answers: list[pykka.Future[Any]] = []
    barrier = Barrier(askers + 1, timeout=WAIT)
    threads = [Thread(target=_ask_each, args=(barrier, refs, answers)) for _ in range(askers)]

    for thread in threads:
        thread.start()
    for ref in refs:
        barrier.wait()
        ref.stop(block=False)
    join(*threads)

    assert len(answers) == len(refs) * askers * 3
    assert {_outcome(answer) for answer in answers} == {"value", "dead"}


def _ask_each(
    barrier: Barrier, refs: list[ActorRef[Recorder]], answers: list[pykka.Future[Any]]
) -> None:
    for ref in refs:
        barrier.wait()
        answers.extend(ref.ask("value", block=False) for _ in range(3))


def _outcome(answer: pykka.Future[Any]) -> str:
    try:
        return str(answer.get(timeout=WAIT))
    except ActorDeadError:
        return "dead"


def test_messages_behind_a_stop_are_answered_that_the_actor_is_dead(plain: type[Recorder]) -> None:
    ref, gate = plain.start(), Gate()
    ref.tell(gate)
    stopped = ref.stop(block=False)
    answers = [ref.ask(number, block=False) for number in range(100)]

    gate.opened.set()

    assert stopped.get(timeout=WAIT)
    assert {_outcome(answer) for answer in answers} == {"dead"}
    assert ref.stop(timeout=WAIT) is False


def test_a_closed_mailbox_refuses_even_one_who_saw_the_actor_alive(plain: type[Recorder]) -> None:
    ref = plain.start()
    ref.stop(timeout=WAIT)
    wait_for(ref.actor_stopped)
    ref.actor_inbox.close()  # type: ignore[attr-defined]
    ref.is_alive = lambda: True  # type: ignore[method-assign]

    with pytest.raises(ActorDeadError):
        ref.tell("too late")
    with pytest.raises(ActorDeadError):
        ask(ref, "too late")
    assert not post(ref, "too late")


def blocked(
    actor_class: type[Recorder], capacity: int
) -> tuple[ActorRef[Recorder], Gate, list[Any]]:
    small: Any = type("Small", (actor_class,), {"mailbox_capacity": capacity})
    ref, gate = small.start(), Gate()
    got = ref.proxy().got.get(timeout=WAIT)
    ref.tell(gate)
    wait_for(gate.entered)
    return ref, gate, got


def test_a_full_mailbox_refuses_at_the_sender(plain: type[Recorder]) -> None:
    ref, gate, got = blocked(plain, 2)
    ref.tell(1)
    ref.tell(2)

    with pytest.raises(MailboxFull):
        ref.tell(3)
    with pytest.raises(MailboxFull):
        ref.ask(3, block=False)

    gate.opened.set()
    assert ref.stop(timeout=WAIT)
    assert got == [gate, 1, 2]


def test_a_full_mailbox_takes_what_is_posted_in_its_order(plain: type[Recorder]) -> None:
    ref, gate, got = blocked(plain, 1)
    ref.tell(1)

    assert post(ref, "urgent")

    gate.opened.set()
    assert ref.stop(timeout=WAIT)
    assert got == [gate, 1, "urgent"]


def test_a_full_mailbox_takes_a_stop(plain: type[Recorder]) -> None:
    ref, gate, _ = blocked(plain, 1)
    ref.tell(1)

    stopped = ref.stop(block=False)

    gate.opened.set()
    assert stopped.get(timeout=WAIT)


def test_a_mailbox_holds_ten_thousand_messages_by_default(plain: type[Recorder]) -> None:
    assert plain.start().actor_inbox.capacity == 10_000  # type: ignore[attr-defined]


def test_posting_to_a_dead_actor_says_so(ref: ActorRef[Recorder]) -> None:
    ref.stop(timeout=WAIT)

    assert post(ref, "too late") is False


def test_posting_to_an_actor_of_another_runtime_is_a_mistake() -> None:
    ref = pykka.ThreadingActor.start()

    with pytest.raises(TypeError):
        post(ref, "hello")


def test_each_sender_keeps_its_order_and_no_message_is_lost(plain: type[Recorder]) -> None:
    ref = plain.start()
    senders = [Thread(target=_send_numbers, args=(ref, sender)) for sender in range(4)]

    for thread in senders:
        thread.start()
    join(*senders)

    got = messages_of(ref)
    assert [n for s, n in got if s == 0] == [n for s, n in got if s == 3] == list(range(2000))
    assert len(got) == 8000


def _send_numbers(ref: ActorRef[Any], sender: int) -> None:
    for number in range(2000):
        ref.tell((sender, number))


def test_a_chain_of_fifty_blocking_asks_is_answered(guarded: type[Recorder]) -> None:
    refs = [guarded.start() for _ in range(50)]

    def link(depth: int) -> object:
        return depth if depth == len(refs) else ask(refs[depth], partial(link, depth + 1))

    assert link(0) == 50


def test_a_reference_and_its_thread_are_let_go_after_the_stop(plain: type[Recorder]) -> None:
    actor = plain()
    gone = weakref.ref(actor)
    ActorRegistry.register(actor.actor_ref)
    actor._start_actor_loop()
    ref = actor.actor_ref
    del actor
    gc.collect()
    assert ask(ref, "alive") == "alive"

    ref.stop(timeout=WAIT)
    ask(plain.start(), "so the worker has put it down")

    wait_for(ref.actor_stopped)
    assert _collected(gone)


def _collected(gone: Callable[[], object]) -> bool:
    for _ in range(100):
        if gone() is None:
            return True
        # Another round through the pool: the thread that ran it is still on its way out.
        ask(PoolActor.start(), "round")
    return False


def test_an_actor_can_be_found_by_its_urn_while_it_lives(ref: ActorRef[Recorder]) -> None:
    assert find_actor(ref.actor_urn) is ref

    ref.stop(timeout=WAIT)

    assert find_actor(ref.actor_urn) is None
    assert ActorRegistry.get_by_urn(ref.actor_urn) is None


def test_pykkas_registry_finds_and_stops_actors(
    plain: type[Recorder], guarded: type[Recorder]
) -> None:
    first, second, third = plain.start(), guarded.start(), plain.start()

    assert ActorRegistry.get_all() == [first, second, third]
    assert ActorRegistry.get_by_class(guarded) == [second]
    assert ActorRegistry.get_by_class_name("Plain") == [first, third]
    assert ActorRegistry.stop_all(timeout=WAIT) == [True] * 3
    assert ActorRegistry.get_all() == []


def test_the_registry_keeps_actors_that_were_there_before() -> None:
    ActorRegistry._actor_refs = []
    old = pykka.ThreadingActor.start()

    new = PoolActor.start()

    assert ActorRegistry.get_all() == [old, new]


def test_thousands_of_actors_share_a_few_threads() -> None:
    refs = [PoolRecorder.start() for _ in range(5000)]

    for ref in refs:
        ref.tell("hello")

    assert all(ask(ref, "there") == "there" for ref in refs[::50])
    assert dispatcher().threads() <= 64


class PoolRecorder(Recorder, PoolActor):
    pass


def test_handlers_that_block_on_other_things_do_not_hold_up_the_rest() -> None:
    gates = [Gate() for _ in range(8)]
    for gate in gates:
        PoolRecorder.start().tell(gate)
    wait_for(*(gate.entered for gate in gates))

    assert ask(PoolRecorder.start(), "alive") == "alive"

    for gate in gates:
        gate.opened.set()


def test_the_flag_of_an_actor_is_a_light_event() -> None:
    flag = PoolRecorder.start().actor_stopped

    assert not flag.wait(0.001)
    assert "unset" in repr(flag)
    flag.set()
    wait_for(flag)
    flag.clear()
    assert not flag.is_set()


def test_a_batch_does_not_starve_the_others() -> None:
    busy, gate = PoolRecorder.start(), Gate()
    busy.tell(gate)
    for number in range(1000):
        busy.tell(number)
    gate.opened.set()

    assert ask(PoolRecorder.start(), "my turn") == "my turn"
    assert len(messages_of(busy)) == 1001


class Counting(PoolActor):
    """Counts what it handles, and waits in the middle of it if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_receive(self, message: Gate | None) -> int:
        if message is not None:
            message.pass_through()
        self.count += 1
        return self.count

    def peek(self) -> int:
        return self.count


def test_an_idle_actor_tells_at_once_what_it_can_be_asked_without_a_message() -> None:
    ref = Counting.start()
    ask(ref, None)

    wait_until(lambda: peek_idle(ref) is not None)

    assert peek_idle(ref) == 1


def test_an_actor_tells_nothing_at_once_while_messages_wait() -> None:
    ref, gate = Counting.start(), Gate()
    ref.tell(gate)
    ref.tell(None)

    assert peek_idle(ref) is None
    gate.opened.set()
    assert ask(ref, None) == 3


def test_an_actor_that_has_stopped_tells_nothing_at_once() -> None:
    ref = Counting.start()
    ref.stop(timeout=WAIT)

    assert peek_idle(ref) is None


INTERRUPTED = """
import signal, sys
from agent_context._runtime import PoolActor

class Counting(PoolActor):
    mailbox_capacity = 10_000_000
    count = 0

    def on_receive(self, message):
        self.count += 1
        return self.count

ref = Counting.start()
told = 0

def on_alarm(number, frame):
    global told
    ref.tell(None)
    told += 1

signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
for _ in range(60_000):
    ref.tell(None)
signal.setitimer(signal.ITIMER_REAL, 0)
print(told > 10, ref.ask(None) == told + 60_001)
ref.stop()
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers on this system")
def test_a_signal_handler_may_tell_what_its_thread_is_telling() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=WAIT, text=True, check=True)

    assert done.stdout == "True True\n"
