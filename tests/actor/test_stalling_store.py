"""Keys, cancels, crashes and a stalling store, in any order: nothing is lost, nothing is twice."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import repeat
from typing import Any

import pykka
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_context import AgentContext, Append, Cancel, ContextRef, Incremental, Message, Send
from agent_context.backend import Request
from agent_context.errors import AskTimeout, ConversationClosed, StoreError, TurnCancelled
from agent_context.protocol import Ask
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.stores import Held
from tests.support.examples import examples
from tests.support.waiting import WAIT

BRIEFLY = 0.02
"""Seconds that are waited for a store that has stalled."""

keys = st.integers(0, 5)


def echo(request: Request) -> Message:
    return Message.assistant(f"answer to {request.records[-1].message.text}")


class Course(RuleBasedStateMachine):
    """One conversation, its store, and what was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Held()
        self.stalled = False
        self.acknowledged: set[str] = set()
        self.asked: dict[int, Ask[Any]] = {}
        self.open: list[tuple[str, Any]] = []
        self.ref = self.start()

    def start(self) -> ContextRef:
        backend = ScriptedBackend(repeat(echo))
        return AgentContext.start(backend, store=self.store, id="c")

    def command(self, key: int) -> Ask[Any]:
        """What is asked with a key is always the same: even ones append, odd ones send."""
        message = Message.user(f"said with {key}")
        name = f"key {key}"
        return Append(message, key=name) if key % 2 == 0 else Send(messages=[message], key=name)

    @rule(key=keys)
    def ask(self, key: int) -> None:
        command = self.asked.setdefault(key, self.command(key))
        try:
            self.ref.ask(self.command(key), timeout=BRIEFLY if self.stalled else WAIT)
        except AskTimeout:
            assert self.stalled
        except (StoreError, TurnCancelled, ConversationClosed):
            assert command is not None
        else:
            self.acknowledged.add(f"said with {key}")

    @rule(key=keys)
    def ask_and_walk_away(self, key: int) -> None:
        command = self.command(key)
        self.asked.setdefault(key, command)
        self.ref.channel.post(command)
        self.ref.channel.cancel(command)

    @rule()
    def cancel(self) -> None:
        with suppress(AskTimeout, StoreError):
            self.ref.ask(Cancel(), timeout=BRIEFLY if self.stalled else WAIT)

    @rule()
    def stall(self) -> None:
        self.store.writing.shut()
        self.store.finding.shut()
        self.stalled = True

    @rule()
    def go_on(self) -> None:
        self.store.writing.open()
        self.store.finding.open()
        self.stalled = False

    @precondition(lambda self: not self.stalled)
    @rule()
    def crash(self) -> None:
        """Somebody else takes the conversation over: the old owner is fenced."""
        self.ref = self.start()

    @precondition(lambda self: not self.stalled)
    @invariant()
    def holds_what_was_acknowledged_once(self) -> None:
        said = self.held()
        assert all(count == 1 for text, count in said.items() if text.startswith("said with"))
        assert self.acknowledged <= said.keys()

    def held(self) -> Counter[str]:
        return Counter(message.text for message in self.ref.ask(Incremental(), timeout=WAIT))

    def teardown(self) -> None:
        self.go_on()
        for key in self.asked:
            self.ref.ask(self.command(key), timeout=WAIT)
        said = self.held()
        for key in self.asked:
            assert said[f"said with {key}"] == 1
        pykka.ActorRegistry.stop_all(timeout=WAIT)


Course.TestCase.settings = examples(0.4, stateful_step_count=25)
TestCourse = Course.TestCase
