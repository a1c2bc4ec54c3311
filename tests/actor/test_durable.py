"""Conversations that outlive their process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from agent_context import (
    AgentContext,
    Append,
    Completion,
    Compress,
    Extend,
    Fork,
    FromJsonl,
    Incremental,
    Message,
    Messages,
    Role,
    Send,
    SendOptions,
    SendStream,
    SlidingWindow,
    Summarize,
    ToJsonl,
    ToolCall,
    events,
)
from agent_context.errors import (
    ConversationClosed,
    Fenced,
    StoreUnavailable,
    UsageError,
)
from agent_context.protocol import (
    Clear,
    Compressed,
    History,
    Insert,
    Len,
    Pop,
    Remove,
    Restore,
    Retain,
    Rewind,
    SearchHistory,
    Update,
)
from agent_context.ref import read_zones
from agent_context.stores.store import Store
from agent_context.tools.loop import ToolRound
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen, Talk
from tests.actor.stores import Failing, Held, crash
from tests.support.waiting import WAIT, wait_for


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


def test_a_conversation_goes_on_where_it_was_stopped(talk: Talk, store: Store) -> None:
    first = talk(["one"], store=store, id="c", immutable=[Message.system("be kind")])
    first.ask(Send(messages=[Message.user("hi")]))
    lines = first.ask(ToJsonl())
    first.stop()
    again = talk(["two"], store=store, id="c")
    assert again.ask(ToJsonl()) == lines
    again.ask(Send(messages=[Message.user("more")]))
    assert texts(again.ask(Messages())) == ["be kind", "hi", "one", "more", "two"]


def test_every_kind_of_change_comes_back_as_it_was(talk: Talk, store: Store) -> None:
    ref = talk(["a summary"] * 3, store=store, id="c", immutable=[Message.system("s")])
    calls = Message.assistant("", tool_calls=[ToolCall(id="x", name="f")])
    ref.ask(Extend([Message.user(f"{i} " + "word " * 50) for i in range(12)]))
    ref.ask(Append(Message.user("您好 \x00 \u2028 é")))
    ref.ask(Insert(0, Message.user("first")))
    ref.ask(Update(1, Message.user("changed")))
    ref.ask(Remove(2))
    ref.ask(Extend([calls, Message.tool("x", "found")]))
    ref.ask(Pop())
    ref.ask(Retain(lambda message: "3 " not in message.text))
    ref.ask(Compress(Summarize(keep=4)))
    ref.ask(Compress(SlidingWindow(turns=2)))
    ref.ask(Rewind(1))
    before = ref.ask(ToJsonl())
    crash(store)
    again = talk(store=store, id="c")
    assert again.ask(ToJsonl()) == before
    again.ask(Restore())
    back = again.ask(ToJsonl())
    again.ask(Clear())
    again.ask(FromJsonl(back))
    crash(store)
    assert talk(store=store, id="c").ask(ToJsonl()) == back


def test_a_snapshot_and_the_rest_make_the_same_conversation(talk: Talk, store: Store) -> None:
    ref = talk(store=store, id="c")
    for i in range(450):
        ref.tell(Append(Message.user(f"{i} " + "word " * 30)))
    ref.ask(Rewind(440))
    ref.ask(Append(Message.user("last")))
    lines = ref.ask(ToJsonl())
    ref.stop()
    log = store.load("c")
    assert log.snapshot is not None
    assert len(log.entries) < 300
    again = talk(store=store, id="c")
    assert again.ask(ToJsonl()) == lines
    again.ask(Restore())
    assert again.ask(Len()) == 450


def test_events_count_from_one_and_the_log_from_the_creation(
    talk: Talk, store: Store, seen: Seen
) -> None:
    ref = talk(["one"], store=store, id="c", on_change=seen)
    ref.ask(Send(messages=[Message.user("hi")]))
    ref.stop()
    assert [event.seq for event in seen.events] == [1, 2]
    assert [entry.seq for entry in store.entries("c")] == [1, 2, 3]


def test_an_answer_comes_when_the_change_is_kept_and_not_before(talk: Talk, seen: Seen) -> None:
    store = Held()
    ref = talk(store=store, id="c", on_change=seen)
    store.writing.shut()
    reply = ref.actor_ref.ask(Append(Message.user("hi")), block=False)
    read = ref.actor_ref.ask(Len(), block=False)
    wait_for(store.writing.reached)
    assert not reply.done()  # type: ignore[attr-defined]
    assert not read.done()  # type: ignore[attr-defined]
    assert seen.events == []
    store.writing.open()
    assert reply.get(timeout=WAIT)
    assert read.get(timeout=WAIT) == 1
    seen.wait_for(events.Appended)


def test_the_model_is_not_asked_before_the_turn_is_noted(talk: Talk) -> None:
    store = Held()
    backend = ScriptedBackend(["one"])
    ref = talk(backend, store=store, id="c")
    store.writing.shut()
    reply = ref.actor_ref.ask(Send(messages=[Message.user("hi")]), block=False)
    wait_for(store.writing.reached)
    assert backend.requests == []
    store.writing.open()
    assert reply.get(timeout=WAIT).message.text == "one"


def test_a_turn_that_a_crash_cut_short_keeps_what_was_noted_and_is_told_of(
    talk: Talk, store: Store, seen: Seen
) -> None:
    hold = Hold()
    ref = talk([hold, "never"], store=store, id="c")
    ref.actor_ref.ask(Send(messages=[Message.user("hi")]), block=False)
    wait_for(hold.entered)
    again = talk(["two"], store=store, id="c", on_change=seen)
    assert texts(again.ask(Incremental())) == ["hi"]
    (lost,) = seen.wait_for(events.TurnLost)
    assert texts(lost.kept) == ["hi"]
    assert again.ask(Send(messages=[Message.user("more")])).message.text == "two"
    hold.release()


def test_a_turn_to_be_discarded_leaves_nothing_after_a_crash(talk: Talk, store: Store) -> None:
    hold = Hold()
    ref = talk([hold, "never"], store=store, id="c")
    discard = SendOptions(on_abort="discard")
    ref.actor_ref.ask(Send(discard, [Message.user("hi")]), block=False)
    wait_for(hold.entered)
    assert talk(store=store, id="c").ask(Incremental()) == ()
    hold.release()


class Loop:
    """A loop that stops after its first result."""

    def __init__(self) -> None:
        self.hold = Hold()

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        done(Message.tool(completion.message.tool_calls[0].id, "paid"))
        await self.hold.wait()
        return None


def test_a_crash_while_tools_run_marks_those_whose_effect_is_unknown(
    talk: Talk, store: Store
) -> None:
    calls = [ToolCall(id="a", name="pay"), ToolCall(id="b", name="pay")]
    loop = Loop()
    ref = talk([Message.assistant("", tool_calls=calls)], store=store, id="c")
    ref.actor_ref.ask(Send(messages=[Message.user("go")], loop=loop), block=False)
    wait_for(loop.hold.entered)
    ref.ask(Append(Message.user("meanwhile")))
    again = talk(["fine"], store=store, id="c")
    stored = again.ask(Incremental())
    assert [message.role for message in stored[1:4]] == [Role.ASSISTANT, Role.TOOL, Role.TOOL]
    assert texts(stored)[::4] == ["go", "meanwhile"]
    assert stored[2].text == "paid"
    assert "not known" in stored[3].text
    again.ask(Send(messages=[Message.user("and now?")]))
    loop.hold.release()


def test_rounds_that_ended_outlive_a_crash_in_a_later_one(talk: Talk, store: Store) -> None:
    hold = Hold()

    class Quick:
        async def answer(
            self, completion: Completion, done: Callable[[Message], object]
        ) -> ToolRound | None:
            return ToolRound([Message.tool("a", "seen")])

    calls = Message.assistant("", tool_calls=[ToolCall(id="a", name="look")])
    ref = talk([calls, hold, "never"], store=store, id="c")
    ref.actor_ref.ask(Send(messages=[Message.user("go")], loop=Quick()), block=False)
    wait_for(hold.entered)
    stored = talk(store=store, id="c").ask(Incremental())
    assert [message.text for message in stored] == ["go", "", "seen"]
    hold.release()


def test_streamed_text_is_noted_while_it_comes(
    talk: Talk, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_context import TextDelta
    from agent_context._actor import turn_task as module

    monkeypatch.setattr(module, "_CHECKPOINT", 0.0)
    hold = Hold()
    ref = talk([[TextDelta("half "), TextDelta("an answer"), hold]], store=store, id="c")
    stream = ref.ask(SendStream(messages=[Message.user("hi")]))
    wait_for(hold.entered)
    ref.ask(Append(Message.user("meanwhile")))
    again = talk(store=store, id="c")
    stored = again.ask(Incremental())
    assert texts(stored)[::2] == ["hi", "meanwhile"]
    assert stored[1].interrupted
    assert stored[1].text.startswith("half")
    hold.release()
    stream.cancel()


def test_the_owner_before_is_fenced_and_ends(talk: Talk, store: Store, seen: Seen) -> None:
    old = talk(store=store, id="c", on_change=seen)
    old.ask(Append(Message.user("one")))
    new = talk(store=store, id="c")
    with pytest.raises(Fenced) as raised:
        old.ask(Append(Message.user("lost")))
    assert raised.value.retryable
    wait_for(old.actor_ref.actor_stopped)
    with pytest.raises(ConversationClosed):
        old.ask(Len())
    assert texts(new.ask(Incremental())) == ["one"]
    assert len(seen.wait_for(events.Appended)) == 1


def test_what_could_not_be_kept_is_refused_and_the_conversation_goes_on(talk: Talk) -> None:
    store = Failing()
    ref = talk(["one"], store=store, id="c")
    ref.ask(Append(Message.user("kept")))
    store.error = StoreUnavailable("the disk is full")
    with pytest.raises(StoreUnavailable, match="full"):
        ref.ask(Append(Message.user("refused")))
    store.error = None
    assert texts(ref.ask(Incremental())) == ["kept"]
    ref.ask(Send(messages=[Message.user("more")]))
    assert texts(ref.ask(Incremental())) == ["kept", "more", "one"]


def test_a_turn_whose_answer_could_not_be_kept_fails(talk: Talk) -> None:
    store = Failing()
    hold = Hold()
    ref = talk([hold, "one", "two"], store=store, id="c")
    reply = ref.actor_ref.ask(Send(messages=[Message.user("hi")]), block=False)
    wait_for(hold.entered)
    store.error = StoreUnavailable("the disk is full")
    hold.release()
    with pytest.raises(StoreUnavailable):
        reply.get(timeout=WAIT)
    store.error = None
    assert texts(ref.ask(Incremental())) == ["hi"]  # it was noted when the turn began
    assert ref.ask(Send(messages=[Message.user("again")])).message.text == "two"


def test_a_fork_shares_the_past_and_not_the_future(talk: Talk, store: Store) -> None:
    ref = talk(["one"], store=store, id="c", immutable=[Message.system("s")])
    ref.ask(Extend([Message.user(str(i)) for i in range(5)]))
    fork = ref.ask(Fork(at=3))
    fork.ask(Append(Message.user("apart")))
    ref.ask(Append(Message.user("on")))
    assert [entry.kind for entry in store.entries(fork.id)] == ["begun", "appended"]
    fork.stop()
    again = talk(store=store, id=fork.id)
    assert texts(again.ask(Messages())) == ["s", "0", "1", "2", "apart"]
    assert texts(ref.ask(Messages())) == ["s", "0", "1", "2", "3", "4", "on"]
    twice = again.ask(Fork())
    assert texts(twice.ask(Messages())) == ["s", "0", "1", "2", "apart"]


def test_a_fork_is_what_its_parent_was_and_not_what_it_became(talk: Talk, store: Store) -> None:
    ref = talk(["sum"], store=store, id="c")
    ref.ask(Extend([Message.user(f"{i} " + "word " * 30) for i in range(300)]))
    fork = ref.ask(Fork())
    lines = fork.ask(ToJsonl())
    fork.stop()
    for _ in range(250):
        ref.tell(Append(Message.user("later " + "word " * 60)))
    ref.ask(Compress(SlidingWindow(turns=1)))
    ref.stop()
    assert talk(store=store, id=fork.id).ask(ToJsonl()) == lines


def test_history_has_what_compression_hid_and_edits_removed(talk: Talk, store: Store) -> None:
    ref = talk(["one", "the summary"], store=store, id="c")
    ref.ask(Send(messages=[Message.user("hi there, a long message " + "word " * 60)]))
    ref.ask(Extend([Message.user(f"{i} " + "word " * 40) for i in range(6)]))
    ref.ask(Compress(Summarize(keep=1)))
    ref.ask(Pop())
    assert len(ref.ask(Compressed())) == 1
    page = ref.ask(History(limit=3))
    said = [remark.message.text.split()[0] for remark in page.entries]
    assert said == ["hi", "one", "0"]
    rest = ref.ask(History(after=page.cursor or "", limit=100))
    assert rest.cursor is None
    assert [remark.message.text.split()[0] for remark in rest.entries] == [
        "1", "2", "3", "4", "5", "Summary",
    ]  # fmt: skip
    assert [remark.kind for remark in rest.entries][-1] == "compressed"


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_of_a_fork_begin_with_its_parents(talk: Talk, store: Store, limit: int) -> None:
    ref = talk(store=store, id="c")
    ref.ask(Extend([Message.user("a"), Message.user("b"), Message.user("c")]))
    fork = ref.ask(Fork(at=2))
    ref.ask(Append(Message.user("elsewhere")))
    fork.ask(Append(Message.user("d")))
    said: list[str] = []
    after: str | None = ""
    while after is not None:
        page = fork.ask(History(after=after, limit=limit))
        said += texts([remark.message for remark in page.entries])
        after = page.cursor
    assert said == ["a", "b", "c", "d"]


def test_recall_finds_what_is_out_of_sight(talk: Talk, store: Store) -> None:
    ref = talk(store=store, id="c")
    ref.ask(Extend([Message.user("the key is under the mat"), Message.user("other")]))
    ref.ask(Clear())
    found = ref.ask(SearchHistory("key mat"))
    assert texts([remark.message for remark in found]) == ["the key is under the mat"]


def test_without_a_store_the_past_is_asked_for_in_vain(talk: Talk) -> None:
    for message in (History(), SearchHistory("x"), Append(Message.user("x"), key="k")):
        with pytest.raises(UsageError, match="store"):
            talk().ask(message)


def test_a_key_does_what_was_asked_once(talk: Talk, store: Store) -> None:
    backend = ScriptedBackend(["one", "two"])
    ref = talk(backend, store=store, id="c")
    message = Message.user("hi")
    first = ref.ask(Append(message, key="k1"))
    assert ref.ask(Append(Message.user("hi again"), key="k1")) == first
    many = ref.ask(Extend([message, message], key="k2"))
    assert ref.ask(Extend([message], key="k2")) == many
    sent = ref.ask(Send(messages=[Message.user("go")], key="k3"))
    ref.stop()
    again = talk(backend, store=store, id="c")
    resent = again.ask(Send(messages=[Message.user("go")], key="k3"))
    assert resent == sent
    assert len(backend.requests) == 1
    stream = again.ask(SendStream(messages=[Message.user("go")], key="k3"))
    list(stream)
    assert stream.completion == sent
    assert again.ask(Len()) == 5


def test_two_who_ask_with_one_key_at_once_get_one_answer(talk: Talk, store: Store) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "one", "two"])
    ref = talk(backend, store=store, id="c")
    asks = [
        ref.actor_ref.ask(Send(messages=[Message.user("go")], key="k"), block=False)
        for _ in range(3)
    ]
    wait_for(hold.entered)
    hold.release()
    answers = {ask.get(timeout=WAIT).message.id for ask in asks}
    assert len(answers) == 1
    assert len(backend.requests) == 1


def test_a_question_that_a_crash_left_unanswered_is_not_said_twice(
    talk: Talk, store: Store
) -> None:
    hold = Hold()
    ref = talk([hold, "never"], store=store, id="c")
    ref.actor_ref.ask(Send(messages=[Message.user("why?")], key="k"), block=False)
    wait_for(hold.entered)
    again = talk([hold, "never"], store=store, id="c")
    again.actor_ref.ask(Send(messages=[Message.user("why?")], key="k"), block=False)
    last = talk(["because", "so"], store=store, id="c")
    answer = last.ask(Send(messages=[Message.user("why?")], key="k"))
    assert texts(last.ask(Incremental())) == ["why?", "because"]
    assert last.ask(Send(messages=[Message.user("why?")], key="k")) == answer
    assert last.ask(Send(messages=[Message.user("why?")], key="other")).message.text == "so"
    hold.release()


def test_a_question_with_something_said_behind_it_moves_to_the_end_when_asked_again(
    talk: Talk, store: Store
) -> None:
    hold = Hold()
    ref = talk([hold, "never"], store=store, id="c")
    asked = [Message.user("listen"), Message.user("why?")]
    ref.actor_ref.ask(Send(messages=asked, key="k"), block=False)
    wait_for(hold.entered)
    again = talk([hold, "never"], store=store, id="c")
    again.ask(Append(Message.user("well?")))
    again.actor_ref.ask(Send(messages=asked, key="k"), block=False)
    last = talk(["because"], store=store, id="c")
    last.ask(Append(Message.user("so?")))
    last.ask(Send(messages=asked, key="k"))
    assert texts(last.ask(Incremental())) == ["well?", "so?", "listen", "why?", "because"]
    hold.release()


def test_a_rewind_is_taken_back_once(talk: Talk, store: Store) -> None:
    for ref in (talk(), talk(store=store, id="c")):
        ref.ask(Extend([Message.user(str(i)) for i in range(4)]))
        with pytest.raises(UsageError, match="no rewind"):
            ref.ask(Restore())
        ref.ask(Rewind(1))
        ref.ask(Append(Message.user("instead")))
        assert texts(ref.ask(Restore())) == ["1", "2", "3"]
        assert texts(ref.ask(Incremental())) == ["0", "1", "2", "3"]
        with pytest.raises(UsageError, match="no rewind"):
            ref.ask(Restore())


async def test_a_durable_conversation_never_blocks_an_event_loop(store: Store) -> None:
    ref = AgentContext.start(ScriptedBackend(["one"]), store=store)
    ids = await asyncio.gather(*(ref.aask(Append(Message.user(str(i)))) for i in range(50)))
    assert len(set(ids)) == 50
    assert await ref.aask(Len()) == 50


def test_a_stop_waits_until_all_is_kept_and_let_go(talk: Talk, store: Store) -> None:
    ref = talk(store=store, id="c")
    ref.tell(Append(Message.user("hi")))
    ref.stop()
    about = store.info("c")
    assert about is not None
    assert (about.head, about.owner) == (2, None)


async def test_what_is_read_at_once_is_read_when_it_is_kept() -> None:
    store = Held()
    ref = AgentContext.start(ScriptedBackend(), store=store, id="c")
    store.writing.shut()
    ref.tell(Append(Message.user("hello")))
    wait_for(store.writing.reached)

    reading = asyncio.ensure_future(read_zones(ref))
    done, _ = await asyncio.wait([reading], timeout=0)
    store.writing.open()

    assert not done
    assert [record.message.text for record in (await reading).incremental] == ["hello"]
