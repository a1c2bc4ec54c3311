"""How an actor ends between two messages, and what becomes of those it has not read."""

from __future__ import annotations

from threading import Event
from typing import Any

import pykka
import pytest

from agent_context._runtime import Mailbox, PoolActor, Reply
from agent_context._runtime.mailbox import forward
from tests.support.waiting import WAIT, wait_for


class Leaving:
    """Asks an actor to end, unless a text waits."""

    def __init__(self) -> None:
        self.begun = Event()
        self.go_on = Event()


class Reader(PoolActor):
    """Reads texts."""

    actor_inbox: Any

    def on_receive(self, message: Any) -> Any:
        if not isinstance(message, Leaving):
            return message
        message.begun.set()
        wait_for(message.go_on)
        return self.actor_inbox.stop_unless_pending(str)


@pytest.fixture
def reader() -> pykka.ActorRef[Any]:
    return Reader.start()


def test_an_actor_to_which_nothing_was_said_ends(reader: pykka.ActorRef[Any]) -> None:
    leaving = Leaving()
    ended = reader.ask(leaving, block=False)
    wait_for(leaving.begun)
    stale = reader.ask(3, block=False)
    leaving.go_on.set()
    assert ended.get(timeout=WAIT)
    assert stale.get(timeout=WAIT) == 3
    wait_for(reader.actor_stopped)


def test_an_actor_to_which_something_was_said_stays(reader: pykka.ActorRef[Any]) -> None:
    leaving = Leaving()
    ended = reader.ask(leaving, block=False)
    wait_for(leaving.begun)
    said = reader.ask("hi", block=False)
    leaving.go_on.set()
    assert not ended.get(timeout=WAIT)
    assert said.get(timeout=WAIT) == "hi"
    assert reader.is_alive()


def test_who_comes_after_the_end_is_refused_at_once(reader: pykka.ActorRef[Any]) -> None:
    inbox = reader.actor_inbox
    assert isinstance(inbox, Mailbox)
    assert inbox.stop_unless_pending(str)
    assert not inbox.stop_unless_pending(str)
    late = reader.ask("hi", block=False)
    assert isinstance(late, Reply)
    assert late.done()
    with pytest.raises(pykka.ActorDeadError):
        late.get(timeout=0)


def test_what_was_not_read_is_answered_by_another_actor(reader: pykka.ActorRef[Any]) -> None:
    leaving = Leaving()
    reader.tell(leaving)
    wait_for(leaving.begun)
    said, number = reader.ask("hi", block=False), reader.ask(3, block=False)
    inbox = reader.actor_inbox
    assert isinstance(inbox, Mailbox)
    (unread,) = inbox.drain(str)
    other = reader.actor_class.start()
    assert forward(unread, other)
    assert said.get(timeout=WAIT) == "hi"
    leaving.go_on.set()
    assert number.get(timeout=WAIT) == 3
    other.stop()
    assert not forward(unread, other)
