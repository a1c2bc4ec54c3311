"""How a host ends: turns finish or are cut short, all is kept and let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from agent_context import (
    Append,
    Fork,
    Host,
    Incremental,
    Message,
    Send,
    SendOptions,
    SendStream,
    Subscribe,
    TextDelta,
    events,
)
from agent_context.errors import ConversationClosed, StoreUnavailable, UsageError
from agent_context.protocol import Len
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen
from tests.host.conftest import Gated, Start, echo
from tests.support.waiting import WAIT, join, wait_for


def start_draining(host: Host, *, timeout: float) -> tuple[Thread, list[bool]]:
    """Drain on a thread of its own, and return when it has begun."""
    outcome: list[bool] = []
    thread = Thread(target=lambda: outcome.append(host.drain(timeout)))
    thread.start()
    with host._registry._changed:
        assert host._registry._changed.wait_for(lambda: host._registry.draining, WAIT)
    return thread, outcome


def test_a_drain_lets_go_of_everything(start: Start, store: Store) -> None:
    host = start(store)
    for i in range(20):
        host.get(f"c{i}").ask(Append(Message.user("hi")))
    assert host.drain()
    assert [about.owner for about in store.conversations()] == [None] * 20
    assert host.active_ids() == ()
    assert host.drain()


def test_a_drain_waits_for_turns_and_begins_no_more(start: Start, store: Store) -> None:
    hold = Hold()
    host = start(store, ScriptedBackend([hold, "one", "two"]))
    ref = host.get("c")
    running = ref.ask(SendStream(messages=[Message.user("a")]))
    waiting = ref.ask(SendStream(messages=[Message.user("b")]))
    wait_for(hold.entered)
    thread, outcome = start_draining(host, timeout=WAIT)
    for asked in (Send(messages=[Message.user("c")]), Fork()):
        with pytest.raises(ConversationClosed, match="drain"):
            ref.ask(asked)
    with pytest.raises(ConversationClosed, match="drain"):
        host.get("d")
    # A tool of the turn that runs may still have something to write down.
    ref.ask(Append(Message.user("meanwhile")))
    hold.release()
    join(thread)
    assert outcome == [True]
    assert running.message.text == "one"
    assert waiting.message.text == "two"
    said = [m.text for m in start(store).get("c").ask(Incremental())]
    assert said == ["a", "one", "meanwhile", "b", "two"]


def test_a_drain_cuts_short_what_takes_too_long(start: Start, store: Store, seen: Seen) -> None:
    hold = Hold()
    host = start(store, ScriptedBackend([[TextDelta("half"), hold]]))
    ref = host.get("c")
    ref.ask(Subscribe(seen))
    stream = ref.ask(SendStream(SendOptions(on_abort="keep"), [Message.user("a")]))
    assert next(iter(stream)) == TextDelta("half")
    wait_for(hold.entered)
    assert not host.drain(timeout=0.05)
    with pytest.raises(ConversationClosed):
        list(stream)
    seen.wait_for(events.TurnFailed)
    (asked, kept) = start(store).get("c").ask(Incremental())
    assert (asked.text, kept.text, kept.interrupted) == ("a", "half", True)


def test_a_drain_waits_for_who_is_being_woken(start: Start) -> None:
    store = Gated()
    host = start(store)
    store.gate.clear()
    found: list[object] = []
    getting = Thread(target=lambda: found.append(host.get("c")))
    getting.start()
    wait_for(store.wanted)
    thread, outcome = start_draining(host, timeout=WAIT)
    store.gate.set()
    join(getting, thread)
    assert outcome == [True]
    assert len(found) == 1
    about = store.info("c")
    assert about is not None
    assert about.owner is None


def test_leaving_the_block_drains_and_closes_the_store(tmp_path: Path) -> None:
    path = tmp_path / "talks.db"
    with Host(SqliteStore(path), echo()) as host:
        ref = host.get("c")
        ref.ask(Append(Message.user("hi")))
    with pytest.raises(ConversationClosed):
        ref.ask(Len())
    with pytest.raises(StoreUnavailable):
        host.info("c")
    with Host(SqliteStore(path), echo()) as again:
        assert again.get("c").ask(Len()) == 1


async def test_leaving_an_async_block_drains_beside_the_loop(tmp_path: Path) -> None:
    async with Host(SqliteStore(tmp_path / "talks.db"), echo()) as host:
        ref = await host.aget("c")
        completion = await ref.aask(Send(messages=[Message.user("hi")]))
        assert completion.message.text == "re: hi"
    with pytest.raises(ConversationClosed):
        await host.aget("c")


def test_subscribers_get_everything_before_a_drain_ends(start: Start, store: Store) -> None:
    host = start(store)
    heard: list[str] = []
    host.subscribe(lambda event: heard.append(event.conversation_id))
    for i in range(50):
        host.get("c").tell(Append(Message.user(str(i))))
    host.drain()
    assert heard == ["c"] * 50


def test_handlers_are_for_the_main_thread_and_for_once(start: Start) -> None:
    host = start(MemoryStore())
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            host.install_signal_handlers()
        except UsageError as error:
            errors.append(error)

    thread = Thread(target=elsewhere)
    thread.start()
    join(thread)
    assert len(errors) == 1
    before = signal.getsignal(signal.SIGTERM)
    host.install_signal_handlers()
    with pytest.raises(UsageError, match="already"):
        host.install_signal_handlers()
    assert signal.getsignal(signal.SIGTERM) != before
    host.drain()
    assert signal.getsignal(signal.SIGTERM) == before


PROGRAM = """
import sys
from threading import Event, Thread, Timer
from agent_context import Host, Message, Send
from agent_context.stores.sqlite import SqliteStore
from agent_context_backends.scripted import Hold, ScriptedBackend

hold = Hold()
host = Host(SqliteStore(sys.argv[1]), ScriptedBackend([hold, "an answer"]))
host.install_signal_handlers(timeout=20)
ref = host.get("c")
Thread(target=lambda: ref.ask(Send(messages=[Message.user("hi")])), daemon=True).start()
hold.entered.wait()
print("ready", flush=True)
Timer(0.3, hold.release).start()
Event().wait(30)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_end_finishes_its_turns_first(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "talks.db"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=WAIT)
    # As the signal does it that nobody handles: a supervisor sees why the process has ended.
    assert process.returncode in {-number, 128 + number}, errors
    with Host(SqliteStore(path), echo()) as host:
        about = host.info("c")
        assert about is not None
        assert about.owner is None
        assert [m.text for m in host.get("c").ask(Incremental())] == ["hi", "an answer"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_handlers_drain_nothing_in_a_forked_child(start: Start) -> None:
    host = start(MemoryStore())
    host.get("c")
    host.install_signal_handlers([signal.SIGTERM])
    try:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert host.active_ids() == ("c",)
    finally:
        host.drain()
