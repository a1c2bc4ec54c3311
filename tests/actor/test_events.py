"""Whoever subscribes sees every change, in order, and can't get in the way."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agent_context import (
    Append,
    ChangeEvent,
    Compress,
    Extend,
    FromJsonl,
    Message,
    Messages,
    Send,
    SlidingWindow,
    Subscribe,
    ToJsonl,
    events,
)
from agent_context.errors import ConversationClosed, DeadlockError, InvalidOptions
from agent_context.messages import Role, TextPart
from agent_context.protocol import (
    Clear,
    Insert,
    Len,
    Pop,
    Remove,
    Restore,
    Rewind,
    Unsubscribe,
    Update,
)
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import join, wait_for


def user(text: str) -> Message:
    return Message.user(text)


def replayed(seen: list[ChangeEvent]) -> tuple[list[Message], list[Message]]:
    """The compressed and incremental zones that these events lead to."""
    compressed: list[Message] = []
    zone: list[Message] = []
    for event in seen:
        match event:
            case events.Appended(index=index, message=message):
                assert index == len(zone)
                zone.append(message)
            case events.Extended(index=index, messages=messages):
                assert index == len(zone)
                zone.extend(messages)
            case events.Inserted(index=index, message=message):
                zone.insert(index, message)
            case events.Updated(index=index, old=old, new=new):
                assert zone[index] == old
                zone[index] = new
            case events.Removed(index=index, message=message):
                assert zone.pop(index) == message
            case events.Popped(message=message):
                assert zone.pop() == message
            case events.Retained(removed=removed) | events.Cleared(removed=removed):
                zone = [message for message in zone if message not in removed]
            case events.Rewound(to=to, removed=removed):
                assert tuple(zone[to:]) == removed
                del zone[to:]
            case events.Compressed(summary=summary, kept=kept):
                zone = list(kept)
                compressed = [summary] if summary else compressed
            case (
                events.Loaded(compressed=shorter, incremental=incremental)
                | events.Restored(compressed=shorter, incremental=incremental)
            ):
                compressed, zone = list(shorter), list(incremental)
            case events.Cancelled() | events.TurnFailed() | events.TurnLost():
                pass
            case events.PromptPrefixChanged() | events.PromptCacheMiss() | events.BackendChanged():
                pass
            case events.Recalled():
                pass
    return compressed, zone


def test_an_event_tells_an_empty_text_as_it_is_stored(talk: Talk, seen: Seen) -> None:
    ctx = talk(["Hi."], on_change=seen)

    ctx.ask(Send(messages=[Message(role=Role.USER, parts=(TextPart(text=""),))]))
    ctx.ask(Clear())

    (cleared,) = seen.wait_for(events.Cleared)
    assert cleared.removed == tuple(event.message for event in seen.of(events.Appended))


def test_events_are_numbered_without_gaps_and_lead_to_the_zones(talk: Talk, seen: Seen) -> None:
    ctx = talk(["Hi."], on_change=seen)

    ctx.ask(Extend([user(str(n)) for n in range(6)]))
    ctx.ask(Insert(2, user("two and a half")))
    ctx.ask(Update(0, user("zero")))
    ctx.ask(Remove(1))
    ctx.ask(Send(messages=[user("Hello")]))
    ctx.ask(Pop())
    ctx.ask(Compress(SlidingWindow(3)))
    ctx.ask(Rewind(2))
    ctx.ask(Append(user("instead")))
    ctx.ask(Restore())
    ctx.ask(FromJsonl('{"role":"user","content":"loaded"}'))
    ctx.ask(Clear())
    ctx.ask(Append(user("last")))

    seen.wait_for(events.Appended, 4)
    assert [event.seq for event in seen.events] == list(range(1, len(seen.events) + 1))
    assert [event.version_before for event in seen.events] == list(range(len(seen.events)))
    assert replayed(seen.events)[1] == list(ctx.ask(Messages()))


def test_many_may_subscribe_and_leave_at_any_time(talk: Talk) -> None:
    first, second = Seen(), Seen()
    ctx = talk(on_change=first)
    ctx.ask(Append(user("a")))

    token = ctx.ask(Subscribe(second))
    ctx.ask(Append(user("b")))
    second.wait_for(events.Appended)
    gone = ctx.ask(Unsubscribe(token))
    ctx.ask(Append(user("c")))

    first.wait_for(events.Appended, 3)
    assert [event.message.text for event in second.of(events.Appended)] == ["b"]
    assert gone
    assert not ctx.ask(Unsubscribe(token))
    assert not ctx.ask(Unsubscribe("nobody"))


def test_a_subscriber_that_raises_hurts_nobody(talk: Talk, seen: Seen) -> None:
    def broken(_: ChangeEvent) -> None:
        raise RuntimeError("a bug in the subscriber")

    ctx = talk(on_change=broken)
    ctx.ask(Subscribe(seen))

    ctx.ask(Append(user("a")))
    ctx.ask(Append(user("b")))

    seen.wait_for(events.Appended, 2)


def test_a_subscriber_that_hangs_holds_up_nobody(talk: Talk, seen: Seen) -> None:
    stuck = threading.Event()
    ctx = talk(on_change=lambda _: wait_for(stuck))
    ctx.ask(Subscribe(seen))

    for n in range(100):
        ctx.ask(Append(user(str(n))))

    seen.wait_for(events.Appended, 100)
    stuck.set()


def test_a_callback_may_tell_but_not_ask(talk: Talk, seen: Seen) -> None:
    caught: list[Any] = []

    def react(event: ChangeEvent) -> None:
        if isinstance(event, events.Appended) and event.index == 0:
            with pytest.raises(DeadlockError) as raised:
                ctx.ask(Len())
            caught.append(raised.value)
            ctx.tell(Append(user("told")))

    ctx = talk(on_change=seen)
    ctx.ask(Subscribe(react))

    ctx.ask(Append(user("first")))

    assert seen.wait_for(events.Appended, 2)[1].message.text == "told"
    assert "use tell" in str(caught[0])


def test_a_callback_may_ask_another_conversation(talk: Talk, seen: Seen) -> None:
    other = talk(on_change=seen)
    ctx = talk(on_change=lambda _: other.ask(Append(user("copied"))))

    ctx.ask(Append(user("a")))

    seen.wait_for(events.Appended)


def test_only_a_callable_can_subscribe(talk: Talk) -> None:
    ctx = talk()

    with pytest.raises(InvalidOptions):
        ctx.ask(Subscribe("callback"))  # type: ignore[arg-type]


def test_a_loaded_event_shows_the_zones(talk: Talk, seen: Seen) -> None:
    source = talk(immutable=[Message.system("s")])
    source.ask(Extend([user("a"), user("b")]))
    ctx = talk(on_change=seen)

    ctx.ask(FromJsonl(source.ask(ToJsonl())))

    (event,) = seen.wait_for(events.Loaded)
    assert (*event.immutable, *event.compressed, *event.incremental) == ctx.ask(Messages())


def test_a_stop_waits_until_subscribers_have_had_everything(talk: Talk) -> None:
    got: list[ChangeEvent] = []
    gate = threading.Event()

    def slow(event: ChangeEvent) -> None:
        wait_for(gate)
        got.append(event)

    ctx = talk(on_change=slow)
    for n in range(50):
        ctx.tell(Append(user(str(n))))
    opener = threading.Timer(0.05, gate.set)
    opener.start()

    ctx.stop()

    assert len(got) == 50


def test_a_stop_does_not_wait_for_a_subscriber_that_hangs(talk: Talk) -> None:
    stuck = threading.Event()
    ctx = talk(on_change=lambda _: wait_for(stuck))
    ctx.ask(Append(user("a")))

    ctx.stop(timeout=0.2)

    stuck.set()
    with pytest.raises(ConversationClosed):
        ctx.ask(Len())


def test_a_callback_may_stop_its_conversation(talk: Talk) -> None:
    stopped = threading.Event()

    def stop(_: ChangeEvent) -> None:
        ctx.stop()
        stopped.set()

    ctx = talk(on_change=stop)

    ctx.tell(Append(user("enough")))

    wait_for(stopped)


def test_many_may_stop_a_conversation_at_once(talk: Talk) -> None:
    ctx = talk(on_change=lambda _: None)
    ctx.ask(Append(user("a")))
    threads = [threading.Thread(target=ctx.stop) for _ in range(8)]

    for thread in threads:
        thread.start()
    join(*threads)

    assert not any(thread.is_alive() for thread in threads)
    with pytest.raises(ConversationClosed):
        ctx.ask(Len())
