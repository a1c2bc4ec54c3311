"""A turn happens alone, once, and whole."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agent_context import (
    Append,
    BackendError,
    Cancel,
    Completion,
    ContextFull,
    ErrorKind,
    Extend,
    FinishReason,
    Message,
    Messages,
    Role,
    Send,
    SendOptions,
    SendStream,
    StreamEvent,
    TextDelta,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
    events,
)
from agent_context.errors import (
    AskTimeout,
    ConversationBusy,
    ConversationClosed,
    InvalidMessage,
    InvalidOptions,
    TurnCancelled,
    TurnTimeout,
    UsageError,
)
from agent_context.protocol import Len, Pop
from agent_context.stream_events import UsageReported
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import WAIT, join, wait_for

HELLO = Message.user("Hello")


def texts(
    ctx: object, *, ask: Callable[[Messages], tuple[Message, ...]] | None = None
) -> list[str]:
    messages = (ask or ctx.ask)(Messages())  # type: ignore[attr-defined]
    return [message.text for message in messages]


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


# What a turn stores


def test_a_send_stores_what_was_said_and_what_was_answered(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend(["Hi."])
    ctx = talk(backend, immutable=[Message.system("Be terse.")], on_change=seen)

    completion = ctx.ask(Send(messages=[HELLO]))

    assert completion.message.text == "Hi."
    assert completion.finish_reason is FinishReason.STOP
    assert completion.usage.input_tokens
    assert texts(ctx) == ["Be terse.", "Hello", "Hi."]
    assert ctx.ask(Messages())[-1] == completion.message
    assert [event.message.text for event in seen.wait_for(events.Appended, 2)] == ["Hello", "Hi."]


def test_a_send_that_fails_stores_nothing_and_says_why(talk: Talk, seen: Seen) -> None:
    error = BackendError("bad key", kind=ErrorKind.AUTH, status=401)
    ctx = talk([error], on_change=seen)
    ctx.ask(Append(HELLO))

    with pytest.raises(BackendError, match="bad key") as raised:
        ctx.ask(Send(messages=[Message.user("again")]))

    assert raised.value.kind is ErrorKind.AUTH
    assert texts(ctx) == ["Hello"]
    (event,) = seen.wait_for(events.TurnFailed)
    assert event.error is error
    assert event.version_before == event.version_after


def test_an_error_of_the_backends_own_code_reaches_the_asker(talk: Talk) -> None:
    ctx = talk([lambda _: dict[str, str]()["no such key"]])

    with pytest.raises(KeyError):
        ctx.ask(Send(messages=[HELLO]))


def test_scratch_goes_out_last_and_is_never_kept(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend(["Noon."])
    ctx = talk(backend, on_change=seen)

    ctx.ask(Send(SendOptions(scratch="It is 12:00."), messages=[HELLO]))

    (request,) = backend.requests
    assert [record.message.text for record in request.records] == ["Hello", "It is 12:00."]
    assert texts(ctx) == ["Hello", "Noon."]
    assert "12:00" not in "".join(map(str, seen.wait_for(events.Appended, 2)))


def test_options_of_a_send_win_over_those_of_the_conversation(talk: Talk) -> None:
    backend = ScriptedBackend(["1", "2"])
    ctx = talk(backend, options=SendOptions(model="big", temperature=0.5, extra={"a": 1}))

    ctx.ask(Send(SendOptions(model="small", extra={"b": 2}), messages=[HELLO]))
    ctx.ask(Send())

    sent, usual = (request.options for request in backend.requests)
    assert (sent.model, sent.temperature, sent.extra) == ("small", 0.5, {"a": 1, "b": 2})
    assert (usual.model, usual.extra) == ("big", {"a": 1})


def test_a_tool_call_is_stored_with_the_answer(talk: Talk) -> None:
    call = ToolCall(id="c1", name="clock", arguments='{"zone": "UTC"}')
    ctx = talk([Message.assistant(tool_calls=[call]), "It is noon."])
    options = SendOptions(tools=(Tool(name="clock"),))

    asked = ctx.ask(Send(options, messages=[Message.user("What time is it?")]))
    ctx.ask(Append(Message.tool("c1", "12:00")))
    answered = ctx.ask(Send(options))

    assert asked.finish_reason is FinishReason.TOOL_CALLS
    assert asked.message.tool_calls == (call,)
    assert answered.message.text == "It is noon."
    roles = [message.role for message in ctx.ask(Messages())]
    assert roles == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]


def test_a_finish_that_is_none_shows_in_the_reply_and_in_the_stored_message(talk: Talk) -> None:
    cut = Completion(
        message=Message.assistant("The answer is"),
        finish_reason=FinishReason.LENGTH,
        raw_finish_reason="length",
    )
    ctx = talk([cut])

    completion = ctx.ask(Send(messages=[HELLO]))

    assert completion.finish_reason is FinishReason.LENGTH
    assert ctx.ask(Messages())[-1].finish_reason is FinishReason.LENGTH


def test_there_must_be_something_to_send(talk: Talk) -> None:
    ctx = talk(["never"])

    with pytest.raises(InvalidOptions, match="nothing to send"):
        ctx.ask(Send())


@pytest.mark.parametrize("text", ["fine", "half a pair: \ud83d"])
def test_an_answer_that_cannot_be_stored_ends_its_turn(talk: Talk, text: str) -> None:
    odd = Message.assistant(text).model_copy(update={"odd": object()})
    ctx = talk([Completion(message=odd), "Fine."])

    with pytest.raises(InvalidMessage):
        ctx.ask(Send(messages=[HELLO]))
    ctx.ask(Send(messages=[Message.user("Again")]))

    assert texts(ctx) == ["Again", "Fine."]


def test_a_partial_answer_that_cannot_be_stored_ends_its_turn(talk: Talk) -> None:
    broken = BackendError("cut", kind=ErrorKind.TRANSPORT)
    ctx = talk([[TextDelta("half a pair: \ud83d"), broken], "Fine."])

    with pytest.raises((InvalidMessage, BackendError)):
        list(ctx.ask(SendStream(messages=[HELLO])))
    ctx.ask(Send(messages=[Message.user("Again")]))

    assert texts(ctx) == ["Again", "Fine."]


# Second tries


def test_an_empty_answer_is_tried_again_and_never_stored(talk: Talk) -> None:
    empty = Completion(message=Message.assistant(""))
    ctx = talk([empty, "There."])

    ctx.ask(Send(messages=[HELLO]))

    assert texts(ctx) == ["Hello", "There."]


def test_a_failure_that_may_pass_is_tried_again_as_often_as_allowed(talk: Talk) -> None:
    busy = BackendError("busy", kind=ErrorKind.OVERLOADED, retry_after=0)
    backend = ScriptedBackend([busy, busy, "Finally."])
    ctx = talk(backend)

    assert ctx.ask(Send(messages=[HELLO])).message.text == "Finally."
    assert len(backend.requests) == 3


def test_without_retries_left_the_failure_is_the_answer(talk: Talk) -> None:
    busy = BackendError("busy", kind=ErrorKind.OVERLOADED, retry_after=0)
    backend = ScriptedBackend([busy, busy, "Too late."])
    ctx = talk(backend, options=SendOptions(retries=1))

    with pytest.raises(BackendError, match="busy"):
        ctx.ask(Send(messages=[HELLO]))
    assert len(backend.requests) == 2


def test_a_failure_that_will_not_pass_is_not_tried_again(talk: Talk) -> None:
    backend = ScriptedBackend([BackendError("no", kind=ErrorKind.QUOTA), "Never."])
    ctx = talk(backend)

    with pytest.raises(BackendError):
        ctx.ask(Send(messages=[HELLO]))
    assert len(backend.requests) == 1


def test_nothing_is_tried_again_once_something_was_emitted(talk: Talk) -> None:
    broken = BackendError("connection lost", kind=ErrorKind.TRANSPORT, retry_after=0)
    backend = ScriptedBackend([[TextDelta("Once upon"), broken], "Never."])
    ctx = talk(backend)

    stream = ctx.ask(SendStream(messages=[HELLO]))
    with pytest.raises(BackendError, match="connection lost"):
        list(stream)

    assert len(backend.requests) == 1
    assert stream.message.text == "Once upon"


# Streams


def test_a_stream_gives_events_as_they_arrive_and_is_stored_once(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("Good "), hold, TextDelta("day.")]], on_change=seen)

    with ctx.ask(SendStream(messages=[HELLO])) as stream:
        first = next(stream)
        before = texts(ctx)
        hold.release()
        rest = list(stream)

    assert first == TextDelta("Good ")
    assert before == []
    assert rest[0] == TextDelta("day.")
    assert stream.completion.message.text == stream.message.text == "Good day."
    assert texts(ctx) == ["Hello", "Good day."]
    seen.wait_for(events.Appended, 2)
    assert seen.names == ["Appended", "Appended"]


def test_a_stream_that_nobody_began_to_read_is_stored_all_the_same(talk: Talk, seen: Seen) -> None:
    ctx = talk(["Stored."], on_change=seen)

    stream = ctx.ask(SendStream(messages=[HELLO]))

    seen.wait_for(events.Appended, 2)
    assert texts(ctx) == ["Hello", "Stored."]
    assert stream.message.text == "Stored."


def test_walking_away_keeps_what_had_arrived(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("Half"), hold, TextDelta(" of it")]], on_change=seen)

    with ctx.ask(SendStream(messages=[HELLO])) as stream:
        for _ in stream:
            break

    assert stream.message.text == "Half"
    assert stream.message.interrupted
    assert ctx.ask(Messages())[-1] == stream.message
    seen.wait_for(events.Cancelled)


def test_dropping_a_stream_is_walking_away(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("Half"), hold]], on_change=seen)
    stream = ctx.ask(SendStream(messages=[HELLO]))
    next(stream)

    del stream
    ctx.ask(Len())  # with a thread of its own, the actor holds its last reply until the next

    seen.wait_for(events.Cancelled)
    assert texts(ctx) == ["Hello", "Half"]


def test_a_stream_may_be_collected_wherever_that_happens(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("Half"), hold]], on_change=seen)
    cycle: list[Any] = [ctx.ask(SendStream(messages=[HELLO]))]
    cycle.append(cycle)
    next(cycle[0])

    with ctx.actor_ref.actor_inbox._lock:  # type: ignore[attr-defined]
        del cycle
        gc.collect()
    ctx.ask(Len())
    gc.collect()

    seen.wait_for(events.Cancelled)


def test_discard_leaves_no_trace_of_a_turn_that_was_cut_short(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("Half"), hold]])

    with ctx.ask(SendStream(SendOptions(on_abort="discard"), messages=[HELLO])) as stream:
        next(stream)

    assert texts(ctx) == []
    with pytest.raises(TurnCancelled):
        stream.message  # noqa: B018


def test_half_a_tool_call_is_never_kept(talk: Talk) -> None:
    hold = Hold()
    fragments = [
        TextDelta("Let me look."),
        ToolCallDelta(0, "c1", "look", '{"at": "a"}'),
        ToolCallDelta(1, "c2", "look", '{"at": '),
        hold,
    ]
    ctx = talk([fragments])

    with ctx.ask(SendStream(messages=[HELLO])) as stream:
        for _ in range(3):
            next(stream)

    assert [call.id for call in stream.message.tool_calls] == ["c1"]


def test_a_broken_stream_raises_after_what_had_arrived(talk: Talk) -> None:
    broken = BackendError("cut", kind=ErrorKind.TRANSPORT)
    ctx = talk([[TextDelta("A"), TextDelta("B"), broken]])
    arrived: list[StreamEvent] = []
    stream = ctx.ask(SendStream(messages=[HELLO]))

    with pytest.raises(BackendError, match="cut"):
        arrived.extend(stream)

    assert arrived == [TextDelta("A"), TextDelta("B")]
    assert texts(ctx) == ["Hello", "AB"]


def test_a_stream_that_fails_before_it_began_stores_nothing(talk: Talk) -> None:
    ctx = talk([BackendError("bad key", kind=ErrorKind.AUTH)])

    with pytest.raises(BackendError):
        list(ctx.ask(SendStream(messages=[HELLO])))

    assert texts(ctx) == []


def test_manual_commit_stores_nothing_and_hands_over_the_chunks(talk: Talk) -> None:
    backend = ScriptedBackend(["By hand."])
    ctx = talk(backend)
    ctx.ask(Append(HELLO))

    with ctx.ask(SendStream(SendOptions(commit="manual"))) as stream:
        for _ in stream:
            pass
    message = backend.merge_chunks(stream.take_chunks())

    assert texts(ctx) == ["Hello"]
    assert message.text == "By hand."
    assert stream.take_chunks() == []
    ctx.ask(Append(message))
    assert texts(ctx) == ["Hello", "By hand."]


def test_a_slow_consumer_holds_back_the_model_and_not_the_conversation(talk: Talk) -> None:
    ctx = talk([[TextDelta(str(n)) for n in range(2_000)]])
    stream = ctx.ask(SendStream(messages=[HELLO]))

    assert ctx.ask(Append(Message.user("meanwhile")))
    arrived = "".join(event.text for event in stream if isinstance(event, TextDelta))

    assert arrived == "".join(map(str, range(2_000)))
    assert texts(ctx) == ["Hello", arrived, "meanwhile"]


def test_the_usage_that_a_stream_reports_is_the_completions(talk: Talk) -> None:
    usage = Usage(input_tokens=9, output_tokens=3, cached_tokens=4)
    ctx = talk([[TextDelta("x"), UsageReported(usage)]])

    with ctx.ask(SendStream(messages=[HELLO])) as stream:
        reported = [event for event in stream if isinstance(event, UsageReported)]

    assert reported == [UsageReported(usage)]
    assert stream.completion.usage == usage


# One at a time


def test_a_conversation_answers_reads_and_edits_while_a_turn_runs(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "Done."])
    ctx.ask(Append(HELLO))
    stream = ctx.ask(SendStream(messages=[Message.user("turn")]))
    wait_for(hold.entered)

    ctx.ask(Append(Message.user("meanwhile")))
    during = texts(ctx)
    hold.release()
    list(stream)

    assert during == ["Hello", "meanwhile"]
    assert texts(ctx) == ["Hello", "turn", "Done.", "meanwhile"]


def test_what_a_turn_was_built_on_may_go_while_it_runs(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "Done."])
    ctx.ask(Append(HELLO))
    stream = ctx.ask(SendStream())
    wait_for(hold.entered)

    ctx.ask(Pop())
    hold.release()
    list(stream)

    assert texts(ctx) == ["Done."]


def test_turns_queue_and_never_interleave(talk: Talk) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "one", "two", "three"])
    ctx = talk(backend)

    streams = [ctx.ask(SendStream(messages=[Message.user(str(n))])) for n in (1, 2, 3)]
    wait_for(hold.entered)
    hold.release()
    for stream in streams:
        list(stream)

    assert texts(ctx) == ["1", "one", "2", "two", "3", "three"]
    assert [len(request.records) for request in backend.requests] == [1, 3, 5]


def test_reject_says_that_the_conversation_is_busy(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "first"])
    stream = ctx.ask(SendStream(messages=[HELLO]))
    wait_for(hold.entered)

    with pytest.raises(ConversationBusy):
        ctx.ask(Send(SendOptions(on_busy="reject"), messages=[HELLO]))

    hold.release()
    list(stream)
    assert texts(ctx) == ["Hello", "first"]


def test_interrupt_ends_the_running_turn_keeps_what_it_had_and_goes_next(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("Once"), hold], "Sorry.", "Queued."])
    running = ctx.ask(SendStream(messages=[Message.user("Tell me a story")]))
    next(running)
    queued = ctx.ask(SendStream(messages=[Message.user("later")]))

    ctx.ask(Send(SendOptions(on_busy="interrupt"), messages=[Message.user("Stop!")]))
    list(queued)

    assert texts(ctx) == ["Tell me a story", "Once", "Stop!", "Sorry.", "later", "Queued."]
    with pytest.raises(TurnCancelled, match="interrupted"):
        list(running)


def test_what_steers_joins_one_model_call(talk: Talk) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "first", "both"])
    ctx = talk(backend)
    running = ctx.ask(SendStream(messages=[HELLO]))
    wait_for(hold.entered)
    steer = SendOptions(on_busy="steer")
    replies = [
        ctx.actor_ref.ask(Send(steer, messages=[Message.user(text)]), block=False)
        for text in ("left", "no, right")
    ]

    hold.release()
    list(running)

    assert [reply.get(timeout=WAIT).message.text for reply in replies] == ["both", "both"]
    assert texts(ctx) == ["Hello", "first", "left", "no, right", "both"]


# How turns end


def test_cancel_ends_the_running_turn(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("A"), hold]], on_change=seen)
    stream = ctx.ask(SendStream(messages=[HELLO]))
    next(stream)

    assert ctx.ask(Cancel(stream.turn_id))
    with pytest.raises(TurnCancelled):
        list(stream)

    assert texts(ctx) == ["Hello", "A"]
    assert seen.wait_for(events.Cancelled)[0].turn_id == stream.turn_id
    assert not ctx.ask(Cancel(stream.turn_id))
    assert not ctx.ask(Cancel())


def test_a_waiting_turn_can_be_cancelled_before_it_begins(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "first"])
    first = ctx.ask(SendStream(messages=[HELLO]))
    second = ctx.ask(SendStream(messages=[Message.user("never")]))

    assert ctx.ask(Cancel(second.turn_id))
    hold.release()
    list(first)

    with pytest.raises(TurnCancelled):
        list(second)
    assert texts(ctx) == ["Hello", "first"]


def test_a_cancelled_send_stores_nothing(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "never"])
    reply = ctx.actor_ref.ask(Send(messages=[HELLO]), block=False)
    wait_for(hold.entered)

    ctx.ask(Cancel())

    with pytest.raises(TurnCancelled):
        reply.get(timeout=WAIT)
    assert texts(ctx) == []


def test_a_turn_ends_at_its_deadline(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("A"), hold]])

    with pytest.raises(TurnTimeout, match=r"0\.2 s"):
        list(ctx.ask(SendStream(SendOptions(timeout=0.2), messages=[HELLO])))

    assert texts(ctx) == ["Hello", "A"]


def test_a_turn_may_time_out_while_it_waits(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "first"])
    first = ctx.ask(SendStream(messages=[HELLO]))

    with pytest.raises(TurnTimeout):
        ctx.ask(Send(SendOptions(timeout=0.1), messages=[Message.user("never")]))

    hold.release()
    list(first)
    assert texts(ctx) == ["Hello", "first"]


def test_an_ask_that_gives_up_does_not_end_the_turn(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([hold, "Late."], on_change=seen)

    with pytest.raises(AskTimeout):
        ctx.ask(Send(messages=[HELLO]), timeout=0.1)
    hold.release()

    seen.wait_for(events.Appended, 2)
    assert texts(ctx) == ["Hello", "Late."]


def test_a_stop_answers_everybody_and_keeps_what_had_arrived(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([[TextDelta("A"), hold]], on_change=seen)
    running = ctx.ask(SendStream(messages=[HELLO]))
    next(running)
    waiting = ctx.actor_ref.ask(Send(messages=[HELLO]), block=False)

    ctx.stop()

    with pytest.raises(ConversationClosed):
        list(running)
    with pytest.raises(ConversationClosed):
        waiting.get(timeout=WAIT)
    with pytest.raises(ConversationClosed):
        ctx.ask(Len())
    with pytest.raises(ConversationClosed):
        ctx.tell(Append(HELLO))
    assert [event.message.text for event in seen.wait_for(events.Appended, 2)] == ["Hello", "A"]
    ctx.stop()


# The window


def test_a_request_that_does_not_fit_is_refused_before_it_goes_out(talk: Talk) -> None:
    backend = ScriptedBackend(["never"])
    ctx = talk(backend, immutable=[Message.system("You are terse.")])
    options = SendOptions(context_window=300, max_tokens=100, auto_compress=False)

    with pytest.raises(ContextFull) as raised:
        ctx.ask(Send(options, messages=[Message.user("word " * 300)]))

    error = raised.value
    assert (error.window, error.reserve) == (300, 100)
    parts = error.immutable + error.compressed + error.incremental + error.scratch + error.tools
    assert error.needed >= parts > 300
    assert backend.requests == []
    assert texts(ctx) == ["You are terse."]


def test_tools_and_scratch_count_too(talk: Talk) -> None:
    ctx = talk(["never"])
    tool = Tool(name="t", description="word " * 300)

    for option in (SendOptions(tools=(tool,)), SendOptions(scratch="word " * 300)):
        narrow = option.model_copy(update={"context_window": 300, "auto_compress": False})
        with pytest.raises(ContextFull):
            ctx.ask(Send(narrow.merged_over(SendOptions(auto_compress=False)), messages=[HELLO]))


def test_what_cannot_be_made_smaller_is_said_to_be_full(talk: Talk) -> None:
    ctx = talk(["never"])

    with pytest.raises(ContextFull, match="nothing left to compress"):
        ctx.ask(Send(SendOptions(context_window=100), messages=[Message.user("word " * 300)]))


# From an event loop


async def test_the_same_from_asyncio(talk: Talk) -> None:
    ctx = talk(["One.", "Two."])

    completion = await ctx.aask(Send(messages=[HELLO]))
    async with await ctx.aask(SendStream(messages=[Message.user("And?")])) as stream:
        arrived = [event.text async for event in stream if isinstance(event, TextDelta)]

    assert completion.message.text == "One."
    assert "".join(arrived) == stream.message.text == "Two."
    assert await ctx.aask(Len()) == 4


async def test_cancelling_the_task_cancels_the_turn(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk([hold, "never"], on_change=seen)
    task = asyncio.create_task(ctx.aask(Send(messages=[HELLO])))
    await asyncio.to_thread(wait_for, hold.entered)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(seen.wait_for, events.Cancelled)
    assert await ctx.aask(Len()) == 0


async def test_waiting_for_a_turn_leaves_the_loop_alone(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "Done."])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while ticks < 100:
            ticks += 1
            await asyncio.sleep(0)
        hold.release()

    completion, _ = await asyncio.gather(ctx.aask(Send(messages=[HELLO])), tick())

    assert completion.message.text == "Done."
    assert ticks == 100


def test_two_threads_that_send_at_once_get_whole_turns(talk: Talk) -> None:
    ctx = talk(ScriptedBackend([lambda request: f"re {request.records[-1].message.text}"] * 40))

    def say(name: str) -> None:
        for n in range(20):
            ctx.ask(Send(messages=[Message.user(f"{name}{n}")]))

    threads = [in_thread(lambda name=name: say(name)) for name in "ab"]  # type: ignore[misc]
    join(*threads)

    said = texts(ctx)
    assert [f"re {text}" for text in said[::2]] == said[1::2]
    assert len(said) == 80


def test_messages_of_a_send_are_checked_before_anything_happens(talk: Talk) -> None:
    backend = ScriptedBackend(["never"])
    ctx = talk(backend)
    ctx.ask(Extend([HELLO]))

    bad: Any
    for bad in (Send(messages=["x"]), Send(options={"model": "m"}), SendStream(messages=3)):  # type: ignore[list-item, call-overload]
        with pytest.raises(UsageError, match="not"):
            ctx.ask(bad)

    assert texts(ctx) == ["Hello"]
    assert backend.requests == []
