"""Turns in which the model calls tools: each round is stored as it ends, and together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from agent_context import (
    Append,
    BackendError,
    Cancel,
    Completion,
    ErrorKind,
    Finished,
    Incremental,
    Message,
    Role,
    Send,
    SendOptions,
    SendStream,
    SlidingWindow,
    Subscribe,
    Summarize,
    TextDelta,
    TokenBudget,
    ToolCall,
)
from agent_context.backend import Request
from agent_context.errors import InvalidOptions, TurnCancelled
from agent_context.models import ModelFacts
from agent_context.protocol import CacheReport
from agent_context.stream_events import ToolRoundFinished
from agent_context.tools.loop import ToolRound
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import WAIT, wait_for


def calls(*names: str) -> Message:
    return Message.assistant("", tool_calls=[ToolCall(id=name, name="look") for name in names])


class Answers:
    """A loop that answers every call with its id, or as it is told."""

    def __init__(self, answer: Callable[[Completion], ToolRound | None] | None = None) -> None:
        self.asked: list[Completion] = []
        self._answer = answer

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        self.asked.append(completion)
        if self._answer is not None:
            return self._answer(completion)
        results = [Message.tool(c.id, f"seen {c.id}") for c in completion.message.tool_calls]
        for result in results:
            done(result)
        return ToolRound(results)


class Stuck:
    """A loop whose first call is answered and whose second never is."""

    def __init__(self) -> None:
        self.hold = Hold()
        self.cancelled = asyncio.Event()

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        done(Message.tool(completion.message.tool_calls[0].id, "done"))
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return None


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text or ",".join(c.id for c in message.tool_calls) for message in messages]


def asked_for(request: Request) -> list[str]:
    return texts([record.message for record in request.records])


def test_two_rounds_are_stored_as_two_groups_in_order(talk: Talk) -> None:
    ref = talk([calls("a", "b"), calls("c"), "done"])
    completion = ref.ask(Send(messages=[Message.user("go")], loop=Answers()))
    assert completion.message.text == "done"
    stored = ref.ask(Incremental())
    assert texts(stored) == ["go", "a,b", "seen a", "seen b", "c", "seen c", "done"]


def test_each_request_of_a_turn_begins_with_the_one_before(talk: Talk) -> None:
    backend = ScriptedBackend([calls("a"), calls("b"), "done", "again"])
    ref = talk(backend)
    ref.ask(Send(messages=[Message.user("go")], loop=Answers()))
    ref.ask(Send(messages=[Message.user("more")]))
    first, second, third, fourth = map(asked_for, backend.requests)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert fourth[: len(third)] == third
    assert ref.ask(CacheReport()).broken == 0


def test_a_stream_tells_rounds_apart_and_finishes_once(talk: Talk) -> None:
    ref = talk([calls("a"), "done"])
    stream = ref.ask(SendStream(messages=[Message.user("go")], loop=Answers()))
    events = list(stream)
    rounds = [event for event in events if isinstance(event, ToolRoundFinished)]
    assert [texts(event.results) for event in rounds] == [["seen a"]]
    assert [type(event) for event in events].count(Finished) == 1
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert text == stream.message.text == "done"


def test_a_loop_that_gives_no_round_ends_the_turn_with_its_calls_open(talk: Talk) -> None:
    ref = talk([calls("a"), "done"])
    loop = Answers(lambda _: None)
    completion = ref.ask(Send(messages=[Message.user("go")], loop=loop))
    assert [call.id for call in completion.message.tool_calls] == ["a"]
    answered = ref.ask(Send(messages=[Message.tool("a", "allowed")]))
    assert answered.message.text == "done"
    assert texts(ref.ask(Incremental())) == ["go", "a", "allowed", "done"]


def test_a_round_may_change_the_options_of_later_calls(talk: Talk) -> None:
    backend = ScriptedBackend([calls("a"), "done"])
    ref = talk(backend)
    loop = Answers(lambda _: ToolRound([Message.tool("a", "seen")], tool_choice="none"))
    ref.ask(Send(SendOptions(temperature=0.5), [Message.user("go")], loop=loop))
    choices = [(r.options.tool_choice, r.options.temperature) for r in backend.requests]
    assert choices == [(None, 0.5), ("none", 0.5)]


def test_without_a_loop_calls_are_left_to_the_caller(talk: Talk) -> None:
    ref = talk([calls("a")])
    assert ref.ask(Send(messages=[Message.user("go")])).message.tool_calls
    assert texts(ref.ask(Incremental())) == ["go", "a"]


def test_what_steers_joins_at_the_next_round(talk: Talk) -> None:
    hold = Hold()

    class Slow(Answers):
        async def answer(
            self, completion: Completion, done: Callable[[Message], object]
        ) -> ToolRound | None:
            await hold.wait()
            return await super().answer(completion, done)

    backend = ScriptedBackend([calls("a"), "done"])
    ref = talk(backend)
    stream = ref.ask(SendStream(messages=[Message.user("go")], loop=Slow()))
    wait_for(hold.entered)
    steer = SendOptions(on_busy="steer")
    steered = ref.actor_ref.ask(Send(steer, [Message.user("hurry")]), block=False)
    ref.ask(Incremental())
    hold.release()
    list(stream)
    assert steered.get(timeout=WAIT).message.text == "done"
    assert asked_for(backend.requests[1]) == ["go", "a", "seen a", "hurry"]
    assert texts(ref.ask(Incremental())) == ["go", "a", "seen a", "hurry", "done"]


def test_what_is_appended_meanwhile_stays_behind_the_turn(talk: Talk) -> None:
    hold = Hold()
    ref = talk([calls("a"), hold, "done"])
    stream = ref.ask(SendStream(messages=[Message.user("go")], loop=Answers()))
    wait_for(hold.entered)
    ref.ask(Append(Message.user("later")))
    hold.release()
    list(stream)
    assert texts(ref.ask(Incremental())) == ["go", "a", "seen a", "done", "later"]


def test_cancelling_while_tools_run_keeps_what_is_known_and_answers_the_rest(
    talk: Talk, seen: Seen
) -> None:
    loop = Stuck()
    ref = talk([calls("a", "b")], on_change=seen)
    reply = ref.actor_ref.ask(Send(messages=[Message.user("go")], loop=loop), block=False)
    wait_for(loop.hold.entered)
    assert ref.ask(Cancel())
    with pytest.raises(TurnCancelled):
        reply.get(timeout=WAIT)
    stored = ref.ask(Incremental())
    assert [message.role for message in stored] == [
        Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL,
    ]  # fmt: skip
    assert stored[2].text == "done"
    assert "not known" in stored[3].text
    assert loop.cancelled.is_set()


def test_discarding_drops_the_open_round_and_keeps_the_rounds_before(talk: Talk) -> None:
    class Second(Stuck):
        async def answer(
            self, completion: Completion, done: Callable[[Message], object]
        ) -> ToolRound | None:
            if completion.message.tool_calls[0].id == "a":
                return ToolRound([Message.tool("a", "seen")])
            return await super().answer(completion, done)

    loop = Second()
    ref = talk([calls("a"), calls("b")])
    options = SendOptions(on_abort="discard")
    reply = ref.actor_ref.ask(Send(options, [Message.user("go")], loop=loop), block=False)
    wait_for(loop.hold.entered)
    ref.ask(Cancel())
    with pytest.raises(TurnCancelled):
        reply.get(timeout=WAIT)
    assert texts(ref.ask(Incremental())) == ["go", "a", "seen"]


def test_a_model_that_fails_after_a_round_leaves_the_round_whole(talk: Talk) -> None:
    ref = talk([calls("a"), BackendError("down", kind=ErrorKind.AUTH)])
    with pytest.raises(BackendError):
        ref.ask(Send(messages=[Message.user("go")], loop=Answers()))
    assert texts(ref.ask(Incremental())) == ["go", "a", "seen a"]


def test_a_loop_that_raises_ends_the_turn_and_leaves_no_open_call(talk: Talk) -> None:
    def fail(_: Completion) -> ToolRound | None:
        raise RuntimeError("the tools broke")

    ref = talk([calls("a")])
    with pytest.raises(RuntimeError, match="the tools broke"):
        ref.ask(Send(messages=[Message.user("go")], loop=Answers(fail)))
    stored = ref.ask(Incremental())
    assert [message.role for message in stored] == [Role.USER, Role.ASSISTANT, Role.TOOL]


def test_a_stream_that_breaks_off_in_calls_answers_them(talk: Talk) -> None:
    half = calls("a")
    events = [
        *ScriptedBackend([half])._steps(half, _request())[:-2],
        BackendError("broken", kind=ErrorKind.TRANSPORT),
    ]
    ref = talk([events])
    stream = ref.ask(SendStream(messages=[Message.user("go")], loop=Answers()))
    with pytest.raises(BackendError):
        list(stream)
    stored = ref.ask(Incremental())
    assert [message.role for message in stored] == [Role.USER, Role.ASSISTANT, Role.TOOL]
    assert "not carried out" in stored[-1].text


def _request() -> Request:
    from agent_context._context.zones import Zones

    facts = ModelFacts(context_window=1000, max_output=100)
    return Request(conversation_id="c", zones=Zones(), options=SendOptions(), facts=facts)


def test_the_window_is_watched_before_every_call(talk: Talk) -> None:
    facts = ModelFacts(context_window=2_000, max_output=200, default_reserve=200)
    backend = ScriptedBackend([*(calls(f"call{i}") for i in range(8)), "done"], facts=facts)
    long = Answers(lambda c: ToolRound([Message.tool(c.message.tool_calls[0].id, "word " * 400)]))
    ref = talk(backend, compression=TokenBudget(budget=1_000))
    completion = ref.ask(Send(messages=[Message.user("go")], loop=long))
    assert completion.message.text == "done"
    sizes = [
        sum(backend.estimate_tokens(r.message, facts) for r in request.records)
        for request in backend.requests
    ]
    assert max(sizes) <= 1_800


def test_a_context_stands_before_what_the_turn_says_and_is_never_stored(talk: Talk) -> None:
    backend = ScriptedBackend(["one", calls("a"), "two", "three"])
    ref = talk(backend)
    ref.ask(Send(messages=[Message.user("first")]))
    context = [Message.user("a fact")]
    options = SendOptions(scratch="now")
    ref.ask(Send(options, [Message.user("second")], context=context, loop=Answers()))
    ref.ask(Send(messages=[Message.user("third")]))
    before = ["first", "one"]
    assert asked_for(backend.requests[1]) == [*before, "a fact", "second", "now"]
    assert asked_for(backend.requests[2]) == [*before, "a fact", "second", "a", "seen a", "now"]
    assert asked_for(backend.requests[3]) == [*before, "second", "a", "seen a", "two", "third"]
    assert ref.ask(CacheReport()).broken == 0


def test_a_history_of_its_own_replaces_the_stored_one_for_one_turn(talk: Talk) -> None:
    backend = ScriptedBackend(["one", calls("a"), "two", "three"])
    preset = [Message.system("be kind")]
    ref = talk(backend, immutable=preset)
    ref.ask(Send(messages=[Message.user("first")]))
    history = [Message.user("elsewhere"), Message.assistant("said")]
    ref.ask(Send(messages=[Message.user("second")], history=history, loop=Answers()))
    ref.ask(Send(messages=[Message.user("third")]))
    kind = "be kind"
    assert asked_for(backend.requests[1]) == [kind, "elsewhere", "said", "second"]
    assert asked_for(backend.requests[2]) == [kind, "elsewhere", "said", "second", "a", "seen a"]
    stored = ["first", "one", "second", "a", "seen a", "two", "third"]
    assert asked_for(backend.requests[3]) == [kind, *stored]


def test_compressing_a_history_of_its_own_leaves_the_stored_one_alone(talk: Talk) -> None:
    facts = ModelFacts(context_window=1_000, max_output=100, default_reserve=100)
    backend = ScriptedBackend(["fine"], facts=facts)
    ref = talk(backend, compression=SlidingWindow(turns=1))
    ref.ask(Append(Message.user("kept")))
    history = [
        message
        for i in range(20)
        for message in (Message.user(f"{i} " + "word " * 40), Message.assistant("yes"))
    ]
    ref.ask(Send(messages=[Message.user("now")], history=history))
    assert len(backend.requests[0].records) < len(history)
    assert texts(ref.ask(Incremental())) == ["kept", "now", "fine"]


def test_instructions_stand_behind_the_immutable_zone_and_are_never_stored(talk: Talk) -> None:
    backend = ScriptedBackend(["one", "two", "three"])
    ref = talk(backend, immutable=[Message.system("be kind")])
    brief = SendOptions(instructions="be brief")
    ref.ask(Send(brief, [Message.user("first")]))
    ref.ask(Send(brief, [Message.user("second")]))
    assert asked_for(backend.requests[0]) == ["be kind", "be brief", "first"]
    assert asked_for(backend.requests[1]) == ["be kind", "be brief", "first", "one", "second"]
    assert ref.ask(CacheReport()).broken == 0
    ref.ask(Send(messages=[Message.user("third")]))
    assert ref.ask(CacheReport()).last.cause == "system"  # type: ignore[union-attr]


def test_with_manual_commit_a_loop_goes_on_and_stores_nothing(talk: Talk) -> None:
    backend = ScriptedBackend([calls("a"), "done"])
    ref = talk(backend)
    ref.ask(Send(SendOptions(commit="manual"), [Message.user("go")], loop=Answers()))
    assert asked_for(backend.requests[1]) == ["go", "a", "seen a"]
    assert ref.ask(Incremental()) == ()


def test_something_else_than_a_loop_is_refused(talk: Talk) -> None:
    ref = talk(["hi"])
    with pytest.raises(InvalidOptions, match="loop"):
        ref.ask(Send(messages=[Message.user("go")], loop="no loop"))  # type: ignore[call-overload]


def test_rounds_are_announced_as_they_are_stored(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ref = talk([calls("a"), hold, "done"])
    ref.ask(Subscribe(seen))
    stream = ref.ask(SendStream(messages=[Message.user("go")], loop=Answers()))
    wait_for(hold.entered)
    ref.ask(Incremental())
    assert texts(ref.ask(Incremental())) == ["go", "a", "seen a"]
    hold.release()
    list(stream)


def test_a_history_of_its_own_is_compressed_once_for_all_rounds(talk: Talk) -> None:
    facts = ModelFacts(context_window=2_000, max_output=100, default_reserve=100)
    rounds = iter([*(calls(f"call{i}") for i in range(4)), Message.assistant("done")])

    def answer(request: Request) -> Message:
        return Message.assistant("a summary") if is_a_wish(request) else next(rounds)

    def is_a_wish(request: Request) -> bool:
        return request.records[-1].message.text == "Summarise."

    backend = ScriptedBackend([answer] * 20, facts=facts)
    ref = talk(backend, compression=Summarize(keep=2, prompt="Summarise."))
    history = [Message.user(f"{i} " + "word " * 100) for i in range(30)]
    ref.ask(Send(messages=[Message.user("go")], history=history, loop=Answers()))
    wishes = [is_a_wish(request) for request in backend.requests]
    assert wishes[0]
    assert wishes[-5:] == [False] * 5
    assert sorted(wishes, reverse=True) == wishes
