"""Durable conversations whose store fails, hangs or lies."""

from __future__ import annotations

import logging
from threading import Event

import pytest

from agent_context import (
    Append,
    Compress,
    ContextRef,
    Extend,
    Fork,
    Incremental,
    Message,
    Messages,
    Send,
    SendOptions,
    SendStream,
    Summarize,
    TextDelta,
    events,
)
from agent_context._actor import state as states
from agent_context._actor import turn_task
from agent_context.errors import (
    AskTimeout,
    BackendError,
    ConversationClosed,
    Fenced,
    InvalidMessage,
    OwnedByAnotherProcess,
    StoreError,
    StoreUnavailable,
)
from agent_context.protocol import History, Len, Restore, Rewind
from agent_context.ref import submit
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Claim, ForkOrigin
from agent_context.stores.writer import StoreExecutor
from agent_context_backends.scripted import Hold
from tests.actor.conftest import Seen, Talk
from tests.actor.stores import Failing, Held, crash
from tests.support.waiting import WAIT, wait_for, wait_until

FULL = StoreUnavailable("the disk is full")


def said(text: str) -> Append:
    return Append(Message.user(text))


def owner(store: MemoryStore) -> str | None:
    about = store.info("c")
    assert about is not None
    return about.owner


def texts(messages: tuple[Message, ...]) -> list[str]:
    return [message.text for message in messages]


def test_what_is_refused_at_once_is_not_acknowledged(talk: Talk) -> None:
    store = MemoryStore()
    ref = talk(store=store, id="c")
    assert StoreExecutor.for_store(store).close(WAIT)
    with pytest.raises(StoreUnavailable):
        ref.ask(said("lost"))
    ref.ask(said("kept"))
    assert texts(ref.ask(Incremental())) == ["kept"]


@pytest.mark.parametrize("error", [FULL, StoreError("a key is used"), OSError("gone")])
def test_the_caller_is_told_in_the_librarys_words(talk: Talk, error: Exception) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.error = error
    with pytest.raises(StoreError, match=str(error)):
        ref.ask(said("lost"))
    store.error = None
    ref.ask(said("kept"))
    assert texts(ref.ask(Incremental())) == ["kept"]
    assert [entry.seq for entry in store.entries("c")] == [1, 2]


def test_a_store_that_answers_for_too_few_writes_does_not_stop_the_others(talk: Talk) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.spoilt = lambda _: []
    with pytest.raises(StoreError, match="answer"):
        ref.ask(said("unknown"))
    store.spoilt = lambda answers: answers
    ref.ask(said("kept"))
    assert texts(ref.ask(Incremental())) == ["unknown", "kept"]


def test_what_was_told_and_could_not_be_kept_is_logged(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.error = FULL
    with caplog.at_level(logging.WARNING, "agent_context"):
        ref.tell(said("lost"))
        with pytest.raises(StoreUnavailable):
            ref.ask(said("lost too"))
    assert "conversation c" in caplog.text
    assert "the disk is full" in caplog.text
    store.error = None


def test_a_conversation_that_can_not_be_found_again_can_be_stopped(talk: Talk) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.error = store.claiming = FULL
    with pytest.raises(StoreUnavailable):
        ref.ask(said("lost"))
    ref.stop(timeout=WAIT)
    assert not ref.actor_ref.is_alive()


def test_one_that_another_process_took_meanwhile_ends(talk: Talk) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.error, store.claiming = FULL, OwnedByAnotherProcess("c", "another")
    with pytest.raises(StoreUnavailable):
        ref.ask(said("lost"))
    with pytest.raises((OwnedByAnotherProcess, ConversationClosed)):
        ref.ask(Len())
    wait_for(ref.actor_ref.actor_stopped)


def test_a_start_does_not_wait_for_ever(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "STORE_TIMEOUT", 0.05)
    store = Held()
    store.claiming.shut()
    with pytest.raises(StoreUnavailable, match=r"0\.05 seconds"):
        talk(store=store, id="c")
    store.claiming.open()


def test_a_start_that_could_not_be_kept_lets_go(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "STORE_TIMEOUT", 0.05)
    store = Held()
    released = Event()
    release = store.release

    def noticed(conversation_id: str, epoch: int) -> None:
        release(conversation_id, epoch)
        released.set()

    monkeypatch.setattr(store, "release", noticed)
    store.writing.shut()
    with pytest.raises(StoreUnavailable):
        talk(store=store, id="c")
    store.writing.open()
    wait_for(released)
    about = store.info("c")
    assert about is not None
    assert about.owner is None


def test_a_claim_that_is_taken_over_at_once_is_fenced_and_not_called_corrupt(talk: Talk) -> None:
    class Contested(MemoryStore):
        """Somebody else claims what is claimed, and writes, before the claimer has read it."""

        contested = False

        def claim(self, conversation_id: str, *, parent: ForkOrigin | None = None) -> Claim:
            claim = super().claim(conversation_id, parent=parent)
            if self.contested:
                self.contested = False
                other.append(talk(store=self, id=conversation_id))
                other[0].ask(said("theirs"))
            return claim

    other: list[ContextRef] = []
    store = Contested()
    talk(store=store, id="c").stop()
    store.contested = True
    late = talk(store=store, id="c")
    with pytest.raises(Fenced):
        late.ask(said("ours"))


def test_the_rest_of_a_stream_is_not_paid_for_once_another_owns_the_conversation(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_task, "_CHECKPOINT", 0.0)
    first, last = Hold(), Hold()
    store = MemoryStore()
    ref = talk([[TextDelta("a"), first, TextDelta("b"), TextDelta("c"), last]], store=store, id="c")
    stream = ref.ask(SendStream(messages=[Message.user("hi")]))
    wait_for(first.entered)
    crash(store)
    first.release()
    with pytest.raises(Fenced):
        list(stream)
    wait_for(ref.actor_ref.actor_stopped)
    last.release()


def test_an_id_that_is_no_text_is_refused_before_anything_happens(talk: Talk, seen: Seen) -> None:
    store = MemoryStore()
    ref = talk(store=store, id="c", on_change=seen)
    for name in ("\ud800", 5):
        bad = Message.user("x").model_copy(update={"id": name})
        with pytest.raises(InvalidMessage):
            ref.ask(Append(bad))
        with pytest.raises(InvalidMessage):
            ref.ask(Send(messages=[bad]))
    ref.ask(said("good"))
    ref.stop()
    assert [event.seq for event in seen.events] == [1]
    assert texts(talk(store=store, id="c").ask(Messages())) == ["good"]


class Unspeakable(Exception):
    """Can't say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [BackendError("\ud800 odd"), Unspeakable()])
def test_a_failure_without_words_fails_its_turn_and_not_the_conversation(
    talk: Talk, error: Exception, seen: Seen
) -> None:
    store = MemoryStore()
    ref = talk([error, "fine"], store=store, id="c", on_change=seen)
    with pytest.raises(type(error)):
        ref.ask(Send(SendOptions(retries=0), [Message.user("hi")]), timeout=WAIT)
    seen.wait_for(events.TurnFailed)
    assert ref.ask(Send(messages=[Message.user("again")])).message.text == "fine"
    crash(store)
    assert texts(talk(store=store, id="c").ask(Messages())) == ["again", "fine"]


def test_messages_with_fields_of_any_name_come_back(talk: Talk) -> None:
    store = MemoryStore()
    ref = talk(store=store, id="c")
    fields = {"zone": "x", "mark": float("nan"), "key": "k", "body": [1], "parent": "p", "\0": 1}
    message = Message.model_validate({"role": "user", "content": "hi", **fields})
    ref.ask(Append(message))
    before = ref.ask(Messages())
    ref.ask(Rewind(0))
    crash(store)
    again = talk(store=store, id="c")
    again.ask(Restore())
    assert again.ask(Messages()) == before


@pytest.mark.parametrize("name", ["a b", "a 1 2", " ", "\u2028", "é" * 300, "c\n", "%s", "'"])
def test_a_conversation_may_have_an_odd_name(talk: Talk, name: str) -> None:
    store = MemoryStore()
    ref = talk(store=store, id=name)
    ref.ask(Extend([Message.user("a"), Message.user("b")]))
    fork = ref.ask(Fork())
    fork.ask(said("c"))
    page = fork.ask(History(limit=1))
    rest = fork.ask(History(after=page.cursor or "", limit=9))
    assert [remark.message.text for remark in rest.entries] == ["b", "c"]


def test_a_stop_that_a_hanging_store_holds_up_says_so_and_loses_nothing(talk: Talk) -> None:
    store = Held()
    ref = talk(store=store, id="c")
    store.writing.shut()
    ref.tell(said("kept"))
    with pytest.raises(AskTimeout):
        ref.stop(timeout=0.05)
    store.writing.open()
    wait_until(lambda: owner(store) is None)
    assert texts(talk(store=store, id="c").ask(Messages())) == ["kept"]


def test_a_stop_waits_until_others_may_have_the_conversation(talk: Talk) -> None:
    store = Held()
    ref = talk(store=store, id="c")
    store.releasing.shut()
    with pytest.raises(AskTimeout):
        ref.stop(timeout=0.05)
    assert owner(store) is not None
    store.releasing.open()
    wait_until(lambda: owner(store) is None)


def test_a_compression_that_could_not_be_kept_says_so(talk: Talk) -> None:
    store, hold = Failing(), Hold()
    ref = talk([hold, "a summary"], store=store, id="c")
    ref.ask(Extend([Message.user(f"{i} " + "word " * 50) for i in range(12)]))
    before = ref.ask(Messages())
    reply = submit(ref, Compress(Summarize(keep=2)))
    wait_for(hold.entered)
    store.error = FULL
    hold.release()
    with pytest.raises(StoreUnavailable):
        reply.get(timeout=WAIT)
    store.error = None
    assert ref.ask(Messages()) == before


def test_a_refusal_by_what_was_lost_is_none(talk: Talk) -> None:
    store = Held()
    ref = talk(store=store, id="c")
    ref.ask(said("x"))
    store.writing.shut()
    ref.tell(Rewind(0))
    wait_for(store.writing.reached)
    refused = submit(ref, Rewind(1))
    crash(store)
    store.writing.open()
    with pytest.raises(Fenced):
        refused.get(timeout=WAIT)
