"""Conversations by id: found or made, once, whoever asks."""

from __future__ import annotations

import asyncio
import os
from threading import Thread, Timer

import pytest

from agent_context import (
    AgentContext,
    Append,
    ContextRef,
    Fork,
    Host,
    Incremental,
    Message,
    Send,
    events,
)
from agent_context.errors import (
    ConversationClosed,
    ConversationDeleted,
    Fenced,
    InvalidOptions,
    OwnedByAnotherProcess,
    StoreUnavailable,
    UnknownConversation,
    UsageError,
)
from agent_context.host import ConversationConfig
from agent_context.protocol import Immutable, Len
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Seen
from tests.host.conftest import Gated, Start, at_once, echo
from tests.support.waiting import WAIT, join, wait_for


def test_many_threads_get_one_actor(start: Start, store: Store) -> None:
    host = start(store)
    found: list[ContextRef] = []

    def work(number: int) -> None:
        for talk in range(10):
            ref = host.get(f"c{talk}")
            ref.ask(Append(Message.user(str(number))))
            found.append(ref)

    at_once(16, work)
    assert len({ref.actor_ref.actor_urn for ref in found}) == 10
    assert {ref.ask(Len()) for ref in found} == {16}


async def test_many_tasks_get_one_actor(start: Start) -> None:
    store = Gated()
    host = start(store)
    refs = await asyncio.gather(*(host.aget(f"c{i % 10}") for i in range(300)))
    assert len({ref.actor_ref.actor_urn for ref in refs}) == 10
    assert store.claims == 10
    assert set(await asyncio.gather(*(ref.aask(Len()) for ref in refs))) == {0}


async def test_an_activation_blocks_no_event_loop_and_all_wait_for_it(start: Start) -> None:
    store = Gated()
    host = start(store)
    store.gate.clear()
    waiting = [asyncio.create_task(host.aget("c")) for _ in range(5)]
    threads = [Thread(target=host.get, args=("c",)) for _ in range(5)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(wait_for, store.wanted)
    assert not any(task.done() for task in waiting)
    store.gate.set()
    refs = await asyncio.gather(*waiting)
    await asyncio.to_thread(join, *threads)
    assert len({ref.actor_ref for ref in refs}) == 1
    assert store.claims == 1


def test_a_failed_activation_is_not_remembered(start: Start) -> None:
    store = Gated()
    host = start(store)
    store.error = StoreUnavailable("not now")
    with pytest.raises(StoreUnavailable, match="not now"):
        host.get("c")
    store.error = None
    assert host.get("c").ask(Len()) == 0


def test_each_conversation_may_have_a_setup_of_its_own(start: Start, store: Store) -> None:
    def setup(conversation_id: str) -> ConversationConfig:
        return ConversationConfig(
            ScriptedBackend([conversation_id]), immutable=[Message.system("hi")]
        )

    host = start(store, setup)
    for name in ("ann", "bob"):
        ref = host.get(name)
        assert ref.ask(Send(messages=[Message.user("who?")])).message.text == name
        assert [message.text for message in ref.ask(Immutable())] == ["hi"]


def test_a_setup_that_fails_is_told_to_who_asked(start: Start, store: Store) -> None:
    host = start(store, lambda name: {"ann": ConversationConfig(echo())}[name])
    with pytest.raises(KeyError):
        host.get("bob")
    assert host.get("ann").ask(Len()) == 0


def test_bad_arguments_are_refused(store: Store) -> None:
    with pytest.raises(InvalidOptions, match="backend"):
        Host(store, "gpt")
    with pytest.raises(InvalidOptions, match="store"):
        Host("a.db", echo())  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match="live"):
        Host(store, echo(), live=0)
    with pytest.raises(UsageError, match="id"):
        Host(store, echo()).get(3)  # type: ignore[arg-type]


def test_what_is_not_there_is_not_made_if_it_must_not_be(start: Start, store: Store) -> None:
    host = start(store)
    with pytest.raises(UnknownConversation):
        host.get("c", create=False)
    assert host.info("c") is None
    host.get("c")
    assert host.get("c", create=False).ask(Len()) == 0


def test_a_host_and_a_start_give_the_same_conversation(start: Start, store: Store) -> None:
    ref = AgentContext.start(echo(), store=store, id="c")
    ref.ask(Append(Message.user("hi")))
    ref.stop()
    assert [m.text for m in start(store).get("c").ask(Incremental())] == ["hi"]


def test_an_owner_elsewhere_is_waited_for_as_long_as_asked(start: Start) -> None:
    store = Gated()
    host = start(store)
    store.error = OwnedByAnotherProcess("c", "another")
    with pytest.raises(OwnedByAnotherProcess) as raised:
        host.get("c")
    assert raised.value.retryable
    with pytest.raises(OwnedByAnotherProcess):
        host.get("c", patience=0.3)
    before = store.claims

    def let_go() -> None:
        store.error = None

    Timer(0.1, let_go).start()
    assert host.get("c", patience=WAIT).ask(Len()) == 0
    assert store.claims > before


def test_a_fenced_conversation_is_activated_anew(start: Start, store: Store) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(Append(Message.user("one")))
    store.claim("c")  # as another process would
    with pytest.raises(Fenced) as raised:
        ref.ask(Append(Message.user("lost")))
    assert raised.value.retryable
    for again in (host.get("c"), ref):
        assert [m.text for m in again.ask(Incremental())] == ["one"]
    ref.ask(Append(Message.user("two")))
    assert host.get("c").ask(Len()) == 2


def test_a_stopped_conversation_is_activated_anew_by_the_next_get(
    start: Start, store: Store
) -> None:
    host = start(store)
    ref, other = host.get("c"), host.get("c")
    ref.ask(Append(Message.user("one")))
    ref.stop()
    with pytest.raises(ConversationClosed):
        ref.ask(Len())
    with pytest.raises(ConversationClosed):
        ref.tell(Append(Message.user("two")))
    assert host.active_ids() == ()
    assert other.ask(Len()) == 1
    assert host.get("c").ask(Len()) == 1
    ref.stop()


def test_a_fork_has_the_id_that_was_asked_for_if_nobody_else_has(
    start: Start, store: Store
) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(Append(Message.user("one")))

    fork = ref.ask(Fork(id="other"))

    assert fork.id == "other"
    for taken in ("other", "c"):
        with pytest.raises(UsageError, match="there is a conversation"):
            ref.ask(Fork(id=taken))
    fork.stop()
    with pytest.raises(UsageError, match="there is a conversation 'other' already"):
        ref.ask(Fork(id="other"))
    assert host.get("other").ask(Len()) == 1


def test_forks_are_known_to_the_host(start: Start, store: Store) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(Append(Message.user("one")))
    ref.ask(Append(Message.user("two")))
    forks = [ref.ask(Fork(1)), host.fork("c", at=1)]
    for fork in forks:
        assert fork.id in host.active_ids()
        assert host.get(fork.id).actor_ref == fork.actor_ref
        fork.ask(Append(Message.user("apart")))
        about = host.info(fork.id)
        assert about is not None
        assert about.parent is not None
        assert about.parent.id == "c"
        fork.stop()
        said = [m.text for m in host.get(fork.id).ask(Incremental())]
        assert said == ["one", "apart"]
    with pytest.raises(UnknownConversation):
        host.fork("nobody")


def test_listing_and_metadata(start: Start, store: Store) -> None:
    host = start(store)
    for name in ("b", "a", "c"):
        host.get(name)
    host.set_metadata("a", {"title": "first"})
    assert [about.id for about in host.conversations(limit=2)] == ["a", "b"]
    assert [about.id for about in host.conversations(after="b")] == ["c"]
    about = host.info("a")
    assert about is not None
    assert about.metadata == {"title": "first"}


def test_a_deleted_conversation_ends_and_is_never_given_out_again(
    start: Start, store: Store
) -> None:
    host = start(store)
    ref = host.get("c")
    ref.ask(Append(Message.user("one")))
    assert host.delete("c")
    assert host.active_ids() == ()
    assert host.info("c") is None
    for again in (lambda: host.get("c"), lambda: ref.ask(Len())):
        with pytest.raises(ConversationDeleted):
            again()
    assert not host.delete("nobody")


def test_the_feed_tells_what_happened_everywhere(start: Start, store: Store) -> None:
    host = start(store)
    host.get("a").ask(Append(Message.user("one")))
    host.get("b").ask(Send(messages=[Message.user("two")]))
    feed = host.feed()
    assert [(each.conversation_id, each.kind) for each in feed if each.messages] == [
        ("a", "appended"), ("b", "appended"), ("b", "appended"),
    ]  # fmt: skip
    assert [m.text for each in feed for m in each.messages] == ["one", "two", "re: two"]
    assert host.feed(after=feed[-1].position) == ()


def test_a_subscriber_hears_of_all_conversations(start: Start, store: Store, seen: Seen) -> None:
    host = start(store)
    early = host.get("a")
    token = host.subscribe(seen)
    early.ask(Append(Message.user("one")))
    host.get("b").ask(Append(Message.user("two")))
    fork = host.fork("b")
    fork.ask(Append(Message.user("three")))
    heard = seen.wait_for(events.Appended, 3)
    assert {event.conversation_id for event in heard} == {"a", "b", fork.id}
    assert host.unsubscribe(token)
    assert not host.unsubscribe(token)
    with pytest.raises(InvalidOptions):
        host.subscribe("loud")  # type: ignore[arg-type]


def test_a_subscriber_of_the_setup_hears_of_every_conversation(
    start: Start, store: Store, seen: Seen
) -> None:
    host = start(store, on_change=seen)
    host.get("a").ask(Append(Message.user("one")))
    host.fork("a").ask(Append(Message.user("two")))
    assert len(seen.wait_for(events.Appended, 2)) == 2


def test_the_check_looks_at_the_store_and_at_the_process(start: Start, store: Store) -> None:
    host = start(store, live=7)
    host.get("c").ask(Len())
    findings = {finding.name: finding for finding in host.health()}
    assert {finding.name for finding in store.health()} < findings.keys()
    assert findings["live"].text == "1 conversations are awake, of 7"
    assert findings["turns"].text == "0 turns run, 0 wait"
    assert "threads" in findings


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_ends_nothing(start: Start) -> None:
    store = MemoryStore()
    host = start(store)
    ref = host.get("c")
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (lambda: host.get("d"), lambda: ref.ask(Len()), lambda: host.delete("c")):
            try:
                call()
            except ConversationClosed:
                refused += 1
        os._exit(0 if refused == 3 and host.drain() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert ref.ask(Len()) == 0
