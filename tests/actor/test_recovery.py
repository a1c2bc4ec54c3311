"""A conversation that could not be kept is read anew, beside its actor and in its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import pytest

from agent_context import Append, ContextRef, Incremental, Message, Send
from agent_context._actor import recovery
from agent_context.errors import AskTimeout, ConversationClosed, StoreError, StoreUnavailable
from agent_context.protocol import Len
from agent_context.stores.store import Write
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Talk
from tests.actor.stores import Held
from tests.support.waiting import WAIT, join, wait_for, wait_until


class Breaks(Held):
    """Refuses one write, and gives out claims through a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        if self.broken:
            self.broken = False
            return [StoreError("refused") for _ in batch]
        return super().write(batch)


def break_and_hold(store: Breaks, ref: ContextRef) -> None:
    """The next change is refused, and the conversation can't be read anew yet."""
    store.broken = True
    store.claiming.shut()
    with pytest.raises(StoreError, match="refused"):
        ref.ask(Append(Message.user("lost")))


def test_what_is_asked_meanwhile_is_answered_from_what_is_kept(talk: Talk) -> None:
    store = Breaks()
    ref = talk(ScriptedBackend(["fine"]), store=store, id="c")
    ref.ask(Append(Message.user("kept")))
    break_and_hold(store, ref)

    asked = [
        ref.actor_ref.ask(Append(Message.user("next")), block=False),
        ref.actor_ref.ask(Send(messages=[Message.user("how are you?")]), block=False),
        ref.actor_ref.ask(Len(), block=False),
    ]
    store.claiming.open()

    asked[0].get(timeout=WAIT)
    assert asked[1].get(timeout=WAIT).message.text == "fine"
    assert [m.text for m in ref.ask(Incremental())] == ["kept", "next", "how are you?", "fine"]


def test_a_store_that_hangs_stops_no_other_conversation(talk: Talk) -> None:
    stores = [Breaks() for _ in range(6)]
    hung = [talk(store=store, id="c") for store in stores]
    for store, ref in zip(stores, hung, strict=True):
        break_and_hold(store, ref)
        ref.tell(Append(Message.user("waits")))
    others = [talk(ScriptedBackend(["fine"])) for _ in range(20)]

    answers = [ref.ask(Send(messages=[Message.user("hi")]), timeout=WAIT) for ref in others]

    assert [answer.message.text for answer in answers] == ["fine"] * 20
    for store, ref in zip(stores, hung, strict=True):
        store.claiming.open()
        wait_until(lambda ref=ref: ref.ask(Len()) == 1)  # type: ignore[misc]


def test_an_ask_gives_up_by_its_own_timeout(talk: Talk) -> None:
    store = Breaks()
    ref = talk(store=store, id="c")
    break_and_hold(store, ref)

    with pytest.raises(AskTimeout):
        ref.ask(Len(), timeout=0.05)

    store.claiming.open()
    assert ref.ask(Len()) == 0


def test_a_store_that_never_answers_is_given_up(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "STORE_TIMEOUT", 0.05)
    store = Breaks()
    ref = talk(store=store, id="c")
    break_and_hold(store, ref)

    with pytest.raises(StoreUnavailable, match=r"0\.05 seconds"):
        ref.ask(Len())

    store.claiming.open()
    wait_until(lambda: _answers(ref))


def _answers(ref: ContextRef) -> bool:
    try:
        return ref.ask(Len()) == 0
    except StoreError:
        return False


def test_a_stop_does_not_wait_for_it(talk: Talk) -> None:
    store = Breaks()
    ref = talk(store=store, id="c")
    break_and_hold(store, ref)
    failed = Event()

    def ask() -> None:
        with pytest.raises(ConversationClosed):
            ref.ask(Len(), timeout=WAIT)
        failed.set()

    asking = Thread(target=ask)
    asking.start()
    actor: Any = ref.actor_ref._actor_weakref()
    wait_until(lambda: bool(actor._held))
    stopping = Thread(target=lambda: ref.stop(timeout=0.1))
    stopping.start()

    wait_for(failed)
    store.claiming.open()
    join(asking)
    join(stopping)


async def test_cancelling_an_ask_that_waits_is_harmless(talk: Talk) -> None:
    store = Breaks()
    ref = talk(ScriptedBackend(["fine"]), store=store, id="c")
    await asyncio.to_thread(break_and_hold, store, ref)
    waiting = asyncio.create_task(ref.aask(Send(messages=[Message.user("hi")])))
    await asyncio.sleep(0)
    waiting.cancel()
    store.claiming.open()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await ref.aask(Len()) in {0, 2}
