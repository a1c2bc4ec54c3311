"""Idempotency keys: a thing is done once, whatever races, fails or ends."""

from __future__ import annotations

import asyncio
from itertools import product
from threading import Thread

import pytest
from msgspec.structs import replace

from agent_context import (
    AgentContext,
    Append,
    Extend,
    Incremental,
    Message,
    Send,
    SendOptions,
    SendStream,
)
from agent_context.errors import (
    ConversationBusy,
    ConversationClosed,
    InvalidOptions,
    StoreUnavailable,
    TurnCancelled,
    UsageError,
)
from agent_context.protocol import IsEmpty, Len
from agent_context.ref import submit
from agent_context.stores.memory import MemoryStore
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Talk
from tests.actor.stores import Failing, Held
from tests.support.waiting import WAIT, join, wait_for

FULL = StoreUnavailable("the disk is full")


def go(key: str | None = "k", **options: object) -> Send:
    return Send(SendOptions.model_validate(options), [Message.user("go")], key=key)


def stream(key: str = "k") -> SendStream:
    return SendStream(messages=[Message.user("go")], key=key)


def test_a_key_is_taken_until_its_stream_has_ended(talk: Talk) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "one", "two"])
    ref = talk(backend, store=MemoryStore(), id="c")
    first = ref.ask(stream())
    wait_for(hold.entered)
    for again in (stream(), go()):
        with pytest.raises(ConversationBusy, match="'k'"):
            ref.ask(again)
    hold.release()
    list(first)
    assert ref.ask(go()) == first.completion
    assert len(backend.requests) == 1


def test_a_stream_that_is_dropped_frees_its_key(talk: Talk) -> None:
    hold = Hold()
    ref = talk([hold, "never", "two"], store=MemoryStore(), id="c")
    with ref.ask(stream()):
        wait_for(hold.entered)
    hold.release()
    assert ref.ask(go()).message.text == "two"


def test_a_key_that_was_given_to_something_else_is_refused(talk: Talk) -> None:
    hold = Hold()
    ref = talk(["one", hold, "two"], store=MemoryStore(), id="c")
    ref.ask(Append(Message.user("x"), key="a"))
    ref.ask(Extend([Message.user("x")], key="e"))
    ref.ask(go("s"))
    kinds: dict[str, Append | Extend | Send] = {
        "a": Append(Message.user("x")),
        "e": Extend([Message.user("x")]),
        "s": go(None),
    }
    for key, other in product(kinds, kinds):
        if other != key:
            with pytest.raises(UsageError, match="key"):
                ref.actor_ref.ask(replace(kinds[other], key=key), timeout=WAIT)
    open_one = ref.actor_ref.ask(go("open"), block=False)
    wait_for(hold.entered)
    with pytest.raises(UsageError, match="key"):
        ref.ask(Append(Message.user("x"), key="open"))
    hold.release()
    open_one.get(timeout=WAIT)
    assert ref.ask(Len()) == 6


@pytest.mark.parametrize("key", ["", "\0", "\ud800", 5])
def test_a_key_that_no_store_can_keep_is_refused(talk: Talk, key: str) -> None:
    ref = talk(store=MemoryStore(), id="c")
    with pytest.raises(InvalidOptions, match="key"):
        ref.ask(Append(Message.user("x"), key=key))
    assert ref.ask(Len()) == 0


def test_an_answer_that_is_not_stored_can_not_be_had_by_a_key(talk: Talk) -> None:
    backend = ScriptedBackend(["one"])
    ref = talk(backend, store=MemoryStore(), id="c")
    with pytest.raises(InvalidOptions, match="manual"):
        ref.ask(go(commit="manual"))
    assert backend.requests == []


def test_what_steers_with_a_key_is_answered_for_itself(talk: Talk) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "one", "two", "three"])
    ref = talk(backend, store=MemoryStore(), id="c")
    asks = [ref.actor_ref.ask(go(None), block=False)]
    wait_for(hold.entered)
    asks += [ref.actor_ref.ask(go(k, on_busy="steer"), block=False) for k in ("a", "b")]
    assert ref.ask(Len()) == 0  # behind the look-ups' start
    hold.release()
    answers = [ask.get(timeout=WAIT) for ask in asks]
    assert ref.ask(go("a")) == answers[1]
    assert ref.ask(go("b")) == answers[2]
    assert len(backend.requests) == 3


def test_a_stop_answers_who_waits_for_a_look_up(talk: Talk) -> None:
    store = Held()
    ref = talk(store=store, id="c")
    store.finding.shut()
    asked = ref.actor_ref.ask(Append(Message.user("x"), key="k"), block=False)
    wait_for(store.finding.reached)
    ref.stop()
    with pytest.raises(ConversationClosed):
        asked.get(timeout=WAIT)
    store.finding.open()


def test_a_stop_leaves_the_answer_to_who_waits_for_a_commit(talk: Talk) -> None:
    store = Held()
    ref = talk(store=store, id="c")
    store.writing.shut()
    asked = submit(ref, Append(Message.user("x"), key="k"))
    wait_for(store.writing.reached)
    stopping = Thread(target=ref.stop)
    stopping.start()
    wait_for(ref.actor_ref.actor_stopped)
    store.writing.open()
    join(stopping)
    entry = store.find_by_key("c", "k")
    assert entry is not None
    assert asked.get(timeout=WAIT) in entry.payload.decode()


def test_a_look_up_that_was_under_way_when_all_was_lost_does_nothing(talk: Talk) -> None:
    store = Held()
    ref = talk(store=store, id="c")
    store.finding.shut()
    asked = ref.actor_ref.ask(Append(Message.user("x"), key="k"), block=False)
    wait_for(store.finding.reached)
    failing = StoreUnavailable("the disk is full")
    write = store.write
    store.write = lambda batch: [failing] * len(batch)  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        ref.ask(Append(Message.user("lost")))
    store.write = write  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        asked.get(timeout=WAIT)
    store.finding.open()
    ref.ask(Append(Message.user("x"), key="k"))
    assert ref.ask(Len()) == 1


def test_a_failed_look_up_is_told_and_the_key_is_free_again(talk: Talk) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.finding = FULL
    with pytest.raises(StoreUnavailable):
        ref.ask(Append(Message.user("x"), key="k"))
    store.finding = None
    ref.ask(Append(Message.user("x"), key="k"))
    assert ref.ask(Len()) == 1


def test_what_was_kept_although_the_store_said_otherwise_is_not_done_again(talk: Talk) -> None:
    store = Failing()
    ref = talk(store=store, id="c")
    store.error, store.kept_anyway = FULL, True
    with pytest.raises(StoreUnavailable):
        ref.ask(Append(Message.user("x"), key="k"))
    store.error = None
    (message,) = ref.ask(Incremental())
    assert ref.ask(Append(Message.user("x"), key="k")) == message.id
    assert ref.ask(Len()) == 1


async def test_who_leaves_does_not_take_the_answer_from_others(talk: Talk) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "one"])
    ref = talk(backend, store=MemoryStore(), id="c")
    first = asyncio.create_task(ref.aask(go()))
    await asyncio.to_thread(wait_for, hold.entered)
    second = asyncio.create_task(ref.aask(go()))
    await asyncio.sleep(0)
    await ref.aask(Len())
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await ref.aask(Len())
    hold.release()
    assert (await second).message.text == "one"


async def test_who_leaves_alone_cancels_the_turn(talk: Talk) -> None:
    hold = Hold()
    ref = talk([hold, "one", "two"], store=MemoryStore(), id="c")
    first = asyncio.create_task(ref.aask(go()))
    await asyncio.to_thread(wait_for, hold.entered)
    first.cancel()
    with pytest.raises((asyncio.CancelledError, TurnCancelled)):
        await first
    assert (await ref.aask(go("other"))).message.text == "two"
    hold.release()


async def test_a_question_that_is_given_up_while_its_key_is_looked_up_is_never_asked() -> None:
    store, backend = Held(), ScriptedBackend(["one", "two"])
    ref = AgentContext.start(backend, store=store, id="c")
    store.finding.shut()
    given_up = Send(messages=[Message.user("given up")], key="k")
    asking = asyncio.create_task(ref.aask(given_up))
    await asyncio.to_thread(wait_for, store.finding.reached)
    asking.cancel()
    await asyncio.wait([asking])
    await ref.aask(IsEmpty())
    store.finding.open()
    await ref.aask(Send(messages=[Message.user("go")], key="other"))
    await asyncio.to_thread(ref.stop)
    (asked,) = backend.requests
    assert [record.message.text for record in asked.records] == ["go"]


async def test_asking_again_just_after_cancelling_is_answered(talk: Talk) -> None:
    """However near the two are: the cancelled turn may still be on its way to its end."""
    for _ in range(50):
        hold = Hold()
        ref = talk(ScriptedBackend([hold, "first", "second"]), store=MemoryStore(), id="c")
        first = asyncio.create_task(ref.aask(go("k")))
        await asyncio.to_thread(wait_for, hold.entered)
        first.cancel()

        again = asyncio.create_task(ref.aask(go("k")))
        hold.release()

        assert (await again).message.text in {"first", "second"}
        with pytest.raises(asyncio.CancelledError):
            await first
        assert [m.text for m in await ref.aask(Incremental())][-2:-1] == ["go"]
        ref.stop()


def test_no_key_of_a_caller_is_taken_for_one_of_the_librarys(talk: Talk) -> None:
    ref = talk(["answer"], store=MemoryStore(), id="c")
    ref.ask(Append(Message.user("something else"), key="question of r1"))

    ref.ask(Send(messages=[Message.user("my words")], key="r1"))

    texts = [message.text for message in ref.ask(Incremental())]
    assert texts == ["something else", "my words", "answer"]
    with pytest.raises(InvalidOptions, match="reserved"):
        ref.ask(Append(Message.user("x"), key="\x1fquestion of r1"))
