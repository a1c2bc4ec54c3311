"""What is easily got wrong at the front door is refused in words that help."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from agent_context import AgentContext, Incremental, Message, Send, Subscribe
from agent_context.errors import InvalidOptions, UsageError
from agent_context.events import Cancelled, ChangeEvent
from agent_context.protocol import Len
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import wait_for


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("hello", r"Send\(messages=\[Message\.user\('hello'\)\]\)"),
        (Send, r"Send is a class: ask Send\(\.\.\.\)"),
        (Message.user("hi"), "messages of agent_context.protocol, not with Message"),
        ({"role": "user"}, "not with dict"),
        (None, "not with NoneType"),
    ],
)
@pytest.mark.parametrize("how", ["ask", "tell"])
def test_what_is_no_message_to_a_conversation_is_refused(
    talk: Talk, asked: object, told: str, how: str
) -> None:
    ctx = talk()
    with pytest.raises(UsageError, match=told):
        getattr(ctx, how)(asked)
    assert ctx.ask(Len()) == 0


async def test_the_same_from_asyncio(talk: Talk) -> None:
    with pytest.raises(UsageError, match="Send is a class"):
        await talk().aask(Send)  # type: ignore[arg-type]


def test_a_conversation_is_started_and_not_constructed() -> None:
    with pytest.raises(UsageError, match=r"AgentContext\.start\(backend, \.\.\.\)"):
        AgentContext(ScriptedBackend())  # type: ignore[arg-type]


class Awaited:
    async def __call__(self, event: ChangeEvent) -> None: ...


async def awaited(event: ChangeEvent) -> None: ...


@pytest.mark.parametrize("callback", [awaited, Awaited()], ids=["function", "object"])
def test_a_subscriber_that_would_have_to_be_awaited_is_refused(
    talk: Talk, callback: object
) -> None:
    with pytest.raises(InvalidOptions, match="call_soon_threadsafe"):
        talk(on_change=callback)
    with pytest.raises(InvalidOptions, match="call_soon_threadsafe"):
        talk().ask(Subscribe(callback))  # type: ignore[arg-type]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Has SIGINT raise `KeyboardInterrupt`, in processes too that were told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_an_ask_cancels_its_turn(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([hold, "too late"], on_change=seen)

    def interrupt() -> None:
        wait_for(hold.entered)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        ctx.ask(Send(messages=[Message.user("Hi")]))

    seen.wait_for(Cancelled)
    assert ctx.ask(Incremental()) == ()
