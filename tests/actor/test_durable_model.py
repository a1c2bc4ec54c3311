"""Any course of a durable conversation and of its store's failures, against a plain list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent_context import (
    AgentContext,
    Append,
    ChangeEvent,
    ContextRef,
    Incremental,
    Message,
    Send,
    ToJsonl,
    events,
)
from agent_context._actor.recovery import load_state
from agent_context.errors import IndexOutOfRange, StoreError, UsageError
from agent_context.protocol import Ask, Clear, Len, Pop, Restore, Rewind
from agent_context.ref import submit
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Write
from tests.host.model import TOOLS, Echo, model
from tests.support.examples import examples
from tests.support.waiting import WAIT

WORDS = st.sampled_from(["red", "green", "blue"])
KEYS = st.sampled_from(["k1", "k2", "k3"])
TURN_KEYS = st.none() | st.sampled_from(["t1", "t2"])
ASKS = st.one_of(
    st.builds(lambda text: Append(Message.user(text)), WORDS),
    st.builds(lambda text, key: Append(Message.user(text), key=key), WORDS, KEYS),
    st.builds(Rewind, st.integers(0, 2)),
    st.sampled_from([Pop(), Clear(), Restore(), Len(), Incremental()]),
)
FAULT = st.one_of(st.none(), st.integers(1, 6))
"""Which of the next writes fails."""


KINDS: dict[type, str] = {
    events.PromptCacheMiss: "cache_missed",
    events.PromptPrefixChanged: "prefix_broken",
}
"""Kinds of entries that are no longer called what their event is."""


class Faulty(MemoryStore):
    """Fails at one write, which is kept or isn't."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_in: int | None = None
        self.keeps = False

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        return [self._one(write) for write in batch]

    def _one(self, write: Write) -> StoreError | None:
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in == 0:
                self.fails_in = None
                if self.keeps:
                    super().write([write])
                return StoreError("the cable was pulled")
        return super().write([write])[0]


class Course(RuleBasedStateMachine):
    """What was acknowledged is there, whole and in order, and nothing else is."""

    @initialize()
    def begin(self) -> None:
        self.store = Faulty()
        self.texts: list[str] = []
        self.undo: list[str] | None = None
        self.keys: dict[str, str] = {}
        self.questions: dict[str, tuple[str, str]] = {}
        """By key, the id and text of what was asked and left without an answer."""
        self.events: list[ChangeEvent] = []
        self.ref = self.started()

    def started(self) -> ContextRef:
        ref: ContextRef = AgentContext.start(
            model(), store=self.store, id="c", on_change=self.events.append
        )
        return ref

    @rule(asks=st.lists(ASKS, min_size=1, max_size=8), fault=FAULT)
    def all_at_once(self, asks: list[Ask[Any]], fault: int | None) -> None:
        """Without waiting for the answer of one before the next is asked."""
        self.store.fails_in = fault
        plain = [ask for ask in asks if not (isinstance(ask, Append) and ask.key)]
        replies = [submit(self.ref, ask) for ask in plain]
        for ask, reply in zip(plain, replies, strict=True):
            self.done(ask, reply)
        for ask in asks:
            if isinstance(ask, Append) and ask.key:
                self.done(ask, submit(self.ref, ask))
        self.store.fails_in = None

    def done(self, ask: Ask[Any], reply: Any) -> None:
        try:
            answer = reply.get(timeout=WAIT)
        except StoreError:
            return
        except IndexOutOfRange:
            assert isinstance(ask, Rewind)
            assert ask.to > len(self.texts)
            return
        except UsageError:
            assert isinstance(ask, Restore)
            assert self.undo is None
            return
        self.expect(ask, answer)

    def expect(self, ask: Ask[Any], answer: Any) -> None:
        texts = self.texts
        match ask:
            case Append(message, key):
                if key in self.keys:
                    assert answer == self.keys[key]
                    return
                self.texts = [*texts, message.text]
                if key is not None:
                    self.keys[key] = answer
            case Pop():
                assert (answer and answer.text) == (texts[-1] if texts else None)
                self.texts = texts[:-1]
            case Clear():
                assert [message.text for message in answer] == texts
                self.texts = []
            case Rewind(to):
                assert [message.text for message in answer] == texts[to:]
                if to < len(texts):
                    self.undo = texts
                self.texts = texts[:to]
            case Restore():
                assert self.undo is not None
                self.texts, self.undo = self.undo, None
            case Len():
                assert answer == len(texts)
            case _:
                assert [message.text for message in answer] == texts

    @rule(text=WORDS, fault=FAULT, tools=st.booleans(), key=TURN_KEYS)
    def send(self, text: str, fault: int | None, *, tools: bool, key: str | None) -> None:
        said = f"{TOOLS} {text}" if tools else text
        asked = Send(messages=[Message.user(said)], loop=Echo(), key=key)
        turn, before = self.turn(said), self.texts.copy()
        question: tuple[str, str] | None = None
        if key not in self.keys and (question := self.questions.get(key or "")):
            turn = self.expect_once(*question) or turn
        self.store.fails_in = fault
        try:
            answer = self.ref.ask(asked, timeout=WAIT)
        except StoreError:
            self.store.fails_in = None
            if question and self.holds(question[0]):
                self.texts = before  # that it was moved to the end was not kept either
            left = self.take_over(turn[:-1])
            if key is not None and left == [said] == turn[:1]:
                self.questions.setdefault(key, (self.last_id(), said))
            return
        self.store.fails_in = None
        if key in self.keys:
            assert answer.message.id == self.keys[key]
            return
        self.texts = [*self.texts, *turn]
        if key is not None:
            self.keys[key] = answer.message.id

    def expect_once(self, question_id: str, said: str) -> list[str] | None:
        """What a turn adds that answers a question of before; None if that is gone."""
        ids = [message.id for message in self.ref.ask(Incremental())]
        if question_id not in ids:
            return None
        if question_id == ids[-1]:
            return self.turn(said)[1:]
        del self.texts[ids.index(question_id)]
        return self.turn(said)

    def holds(self, message_id: str) -> bool:
        return any(message.id == message_id for message in self.ref.ask(Incremental()))

    def last_id(self) -> str:
        return "".join(message.id for message in self.ref.ask(Incremental())[-1:])

    def turn(self, said: str) -> list[str]:
        token = said.rsplit(maxsplit=1)[-1]
        if not said.startswith(TOOLS):
            return [said, f"re: {said}"]
        return [said, "", f"{token}-0", f"{token}-1", f"re: {token}-1"]

    def take_over(self, maybe: list[str]) -> list[str]:
        """What failed left a beginning of this, with every call answered, or nothing."""
        now = [message.text for message in self.ref.ask(Incremental())]
        left = now[len(self.texts) :]
        assert now[: len(self.texts)] == self.texts
        assert len(left) in {0, 1, len(maybe)}
        assert [text for text in left if "[interrupted]" not in text] == [
            text for text, kept in zip(maybe, left, strict=False) if "[interrupted]" not in kept
        ]
        self.texts = now
        return left

    @rule(text=WORDS)
    def kept_and_not_told(self, text: str) -> None:
        self.store.keeps, self.store.fails_in = True, 1
        with pytest.raises(StoreError):
            self.ref.ask(Append(Message.user(text)))
        self.store.keeps = False
        self.texts = [*self.texts, text]

    @rule()
    def crash(self) -> None:
        """Another owner, as after a kill: the one before may still have something to say."""
        before, self.ref = self.ref, self.started()
        with pytest.raises(Exception, match=r"epoch|stopped"):
            before.ask(Append(Message.user("stale")))

    @rule()
    def stop_and_start(self) -> None:
        self.ref.stop()
        about = self.store.info("c")
        assert about is not None
        assert about.owner is None
        self.ref = self.started()

    @invariant()
    def holds_what_was_acknowledged(self) -> None:
        assert [message.text for message in self.ref.ask(Incremental())] == self.texts
        zones = load_state(self.store, "c").zones
        assert [record.message.text for record in zones.incremental] == self.texts

    @invariant()
    def tells_what_is_kept_in_order_and_once(self) -> None:
        told = [event.seq for event in self.events]
        assert told == sorted(set(told))
        kinds = {entry.seq: entry.kind for entry in self.store.entries("c")}
        assert list(kinds) == list(range(1, len(kinds) + 1))
        for event in self.events:
            name = KINDS.get(type(event)) or type(event).__name__.lower()
            assert kinds[event.seq + 1].replace("_", "") == name.replace("_", "")

    def teardown(self) -> None:
        lines = self.ref.ask(ToJsonl())
        self.ref.stop()
        again = self.started()
        assert again.ask(ToJsonl()) == lines
        again.stop()


Course.TestCase.settings = examples(
    0.6, stateful_step_count=20, allow=[HealthCheck.filter_too_much]
)

TestCourse = Course.TestCase
