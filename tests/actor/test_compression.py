"""A compression happens whole or not at all, beside the talk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_context import (
    Append,
    BackendError,
    Compress,
    ErrorKind,
    EstimateTokens,
    Extend,
    FinishReason,
    Incremental,
    Message,
    Messages,
    Send,
    SendOptions,
    SendStream,
    SlidingWindow,
    Summarize,
    TextDelta,
    ToJsonl,
    TokenBudget,
    Tool,
    ToolCall,
    events,
)
from agent_context.compression import (
    CompressionPlan,
    EvictToolResults,
    Pipeline,
    PlanningView,
    Strategy,
)
from agent_context.errors import CompressionError, ContextFull, DeadlockError, TurnTimeout
from agent_context.protocol import Clear, Compressed, Insert, Len
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.actor.conftest import Seen, Talk
from tests.compression.test_strategies import loop
from tests.support.waiting import WAIT, wait_for

SYSTEM = Message.system("You are terse.")


def chat(count: int, words: int = 40) -> list[Message]:
    texts = [f"message {n} " + "word " * words for n in range(count)]
    return [(Message.assistant if n % 2 else Message.user)(text) for n, text in enumerate(texts)]


def texts(ctx: Any) -> list[str]:
    return [message.text for message in ctx.ask(Messages())]


def test_a_summary_takes_the_place_of_what_it_tells(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend(["They counted to five."])
    ctx = talk(backend, immutable=[SYSTEM], on_change=seen)
    ids = ctx.ask(Extend(chat(8)))

    report = ctx.ask(Compress(Summarize(keep=2)))

    (summary,) = ctx.ask(Compressed())
    assert "They counted to five." in summary.text
    assert [message.id for message in ctx.ask(Incremental())] == list(ids[6:])
    assert ctx.ask(Len()) == 4
    assert (report.removed_ids, report.summary_id) == (ids[:6], summary.id)
    assert report.after.total < report.before.total
    assert report.usage.input_tokens
    (event,) = seen.wait_for(events.Compressed)
    assert event.summary == summary
    assert [message.id for message in event.removed] == list(ids[:6])
    assert [message.id for message in event.kept] == list(ids[6:])


def test_the_summary_request_is_the_conversation_and_a_wish(talk: Talk) -> None:
    backend = ScriptedBackend(["Short."])
    options = SendOptions(
        model="m", effort="high", tools=(Tool(name="t"),), tool_choice="auto", scratch="12:00"
    )
    ctx = talk(backend, immutable=[SYSTEM], options=options)
    ctx.ask(Extend(chat(6)))

    ctx.ask(Compress(Summarize(keep=2, prompt="Sum it up.", target=50)))

    (request,) = backend.requests
    said = [record.message.text for record in request.records]
    assert said[0] == SYSTEM.text
    assert [text.split()[1] for text in said[1:5]] == ["0", "1", "2", "3"]
    assert said[5:] == ["Sum it up."]
    kept = request.options.model_copy(update={"scratch": (), "max_tokens": None})
    assert kept == options.model_copy(update={"scratch": ()})
    assert request.options.max_tokens == 50


def test_earlier_summaries_are_rolled_up(talk: Talk) -> None:
    backend = ScriptedBackend(["First summary.", "Second summary."])
    ctx = talk(backend)
    ctx.ask(Extend(chat(6)))
    ctx.ask(Compress(Summarize(keep=2)))
    ctx.ask(Extend(chat(6)))

    ctx.ask(Compress(Summarize(keep=2)))

    assert ["Second summary." in message.text for message in ctx.ask(Compressed())] == [True]
    assert "First summary." in backend.requests[1].records[0].message.text


def test_nothing_to_summarise_is_nothing_done(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend(["never"])
    ctx = talk(backend, on_change=seen)
    ctx.ask(Append(Message.user("hi")))

    report = ctx.ask(Compress(Summarize(keep=2)))

    assert not report.changed
    assert report.before == report.after
    assert backend.requests == []
    assert seen.of(events.Compressed) == []


@pytest.mark.parametrize(
    "answer",
    [
        Message.assistant("  \n "),
        Message.assistant("longer than what it replaces " * 200),
        Message.assistant(tool_calls=[ToolCall(id="c", name="t", arguments="{}")]),
        BackendError("no", kind=ErrorKind.AUTH),
        BackendError("busy", kind=ErrorKind.RATE_LIMITED, retryable=False),
        RuntimeError("a bug"),
    ],
    ids=["blank", "too long", "tool call", "refused", "rate limited", "bug"],
)
def test_a_summary_that_cannot_be_used_changes_nothing(talk: Talk, seen: Seen, answer: Any) -> None:
    ctx = talk([answer], immutable=[SYSTEM], on_change=seen)
    ctx.ask(Extend(chat(8)))
    before = ctx.ask(ToJsonl())

    with pytest.raises((CompressionError, RuntimeError)):
        ctx.ask(Compress(Summarize(keep=2)))

    assert ctx.ask(ToJsonl()) == before
    assert seen.of(events.Compressed) == []


def test_what_is_appended_meanwhile_stays(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "Short."])
    ctx.ask(Extend(chat(8)))
    reply = ctx.actor_ref.ask(Compress(Summarize(keep=2)), block=False)
    wait_for(hold.entered)

    ctx.ask(Append(Message.user("meanwhile")))
    hold.release()
    reply.get(timeout=WAIT)

    assert "Short." in texts(ctx)[0]
    assert texts(ctx)[-1] == "meanwhile"
    assert ctx.ask(Len()) == 4


def test_a_clear_meanwhile_is_not_undone(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "Stale."])
    ctx.ask(Extend(chat(8)))
    reply = ctx.actor_ref.ask(Compress(Summarize(keep=2)), block=False)
    wait_for(hold.entered)

    ctx.ask(Clear())
    hold.release()

    assert not reply.get(timeout=WAIT).changed
    assert ctx.ask(Len()) == 0


def test_an_edit_before_the_cut_makes_it_begin_anew(talk: Talk) -> None:
    hold = Hold()
    backend = ScriptedBackend([hold, "Stale.", "Fresh."])
    ctx = talk(backend)
    ctx.ask(Extend(chat(8)))
    reply = ctx.actor_ref.ask(Compress(Summarize(keep=2)), block=False)
    wait_for(hold.entered)

    ctx.ask(Insert(0, Message.user("before everything")))
    hold.release()
    reply.get(timeout=WAIT)

    assert "Fresh." in texts(ctx)[0]
    assert backend.requests[1].records[0].message.text == "before everything"


def test_it_is_swapped_in_between_turns(talk: Talk, seen: Seen) -> None:
    hold, turn = Hold(), Hold()
    ctx = talk(
        [[turn, TextDelta("Answer.")], hold, "Short."],
        on_change=seen,
    )
    ctx.ask(Extend(chat(8)))
    stream = ctx.ask(SendStream(messages=[Message.user("question")]))
    wait_for(turn.entered)
    reply = ctx.actor_ref.ask(Compress(Summarize(keep=2)), block=False)
    hold.release()

    during = ctx.ask(Len())
    turn.release()
    list(stream)
    reply.get(timeout=WAIT)

    assert during == 8
    assert texts(ctx)[-2:] == ["question", "Answer."]
    assert "Short." in texts(ctx)[0]
    seen.wait_for(events.Compressed)
    assert seen.names == ["Extended", "Appended", "Appended", "Compressed"]


def test_a_send_that_does_not_fit_compresses_first(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend(["They counted.", "Fits."])
    ctx = talk(
        backend,
        immutable=[SYSTEM],
        options=SendOptions(context_window=900, max_tokens=400),
        compression=Summarize(keep=2),
        on_change=seen,
    )
    ctx.ask(Extend(chat(12)))

    ctx.ask(Send(messages=[Message.user("And?")]))

    asked = [record.message.text for record in backend.requests[1].records]
    assert asked[0] == SYSTEM.text
    assert "They counted." in asked[1]
    assert asked[-1] == "And?"
    assert len(asked) == 5
    breakdown = ctx.ask(EstimateTokens())
    assert breakdown.free > 0
    seen.wait_for(events.Appended, 2)
    assert seen.names == ["Extended", "Compressed", "Appended", "Appended"]


def test_a_send_whose_compression_fails_sends_nothing(talk: Talk) -> None:
    backend = ScriptedBackend([BackendError("down", kind=ErrorKind.AUTH), "never"])
    ctx = talk(backend, compression=Summarize(keep=2))
    ctx.ask(Extend(chat(12)))
    before = ctx.ask(ToJsonl())

    with pytest.raises(CompressionError, match="down"):
        ctx.ask(Send(SendOptions(context_window=700), messages=[Message.user("And?")]))

    assert len(backend.requests) == 1
    assert ctx.ask(ToJsonl()) == before


def test_a_request_that_the_vendor_finds_too_long_is_compressed_once(talk: Talk) -> None:
    overflow = BackendError("too long", kind=ErrorKind.CONTEXT_OVERFLOW)
    backend = ScriptedBackend([overflow, "They counted.", "Fits."])
    ctx = talk(backend, compression=Summarize(keep=2))
    ctx.ask(Extend(chat(12)))

    assert ctx.ask(Send(messages=[Message.user("And?")])).message.text == "Fits."
    assert len(backend.requests[2].records) == 4


def test_a_request_that_stays_too_long_is_not_compressed_for_ever(talk: Talk) -> None:
    overflow = BackendError("too long", kind=ErrorKind.CONTEXT_OVERFLOW)
    ctx = talk([overflow, "They counted.", overflow], compression=Summarize(keep=2))
    ctx.ask(Extend(chat(12)))

    with pytest.raises(BackendError, match="too long"):
        ctx.ask(Send(messages=[Message.user("And?")]))


def test_the_tiers_stop_as_soon_as_it_fits(talk: Talk) -> None:
    backend = ScriptedBackend(["Done."])
    long = "found " * 600
    ctx = talk(backend, options=SendOptions(context_window=5_000, max_tokens=100))
    ctx.ask(Extend([message for n in range(8) for message in loop(n, result=long)]))

    ctx.ask(Send(messages=[Message.user("And?")]))

    assert len(backend.requests) == 1
    stubs = [message for message in ctx.ask(Messages()) if message.extra.get("evicted")]
    assert len(stubs) == 5


def test_a_refused_summary_makes_room_for_the_next_tier(talk: Talk) -> None:
    too_long = "longer than what it replaces " * 400
    backend = ScriptedBackend([too_long, "Done."])
    strategy = Pipeline([EvictToolResults(1), Summarize(keep=2), TokenBudget()])
    options = SendOptions(context_window=1_500, max_tokens=700)
    ctx = talk(backend, options=options, compression=strategy)
    ctx.ask(Extend(chat(20)))

    ctx.ask(Send(messages=[Message.user("And?")]))

    assert ctx.ask(Compressed()) == ()
    assert ctx.ask(Len()) < 20


def test_a_history_longer_than_the_window_is_summarised_in_pieces(talk: Talk) -> None:
    backend = ScriptedBackend([f"Part {n}." for n in range(20)])
    ctx = talk(
        backend,
        immutable=[SYSTEM],
        options=SendOptions(context_window=700, max_tokens=100),
        compression=Summarize(keep=2, target=60),
    )
    ctx.ask(Extend(chat(40)))

    report = ctx.ask(Compress())

    pieces = len(backend.requests)
    assert pieces > 2
    assert f"Part {pieces - 1}." in ctx.ask(Compressed())[0].text
    assert len(ctx.ask(Compressed())) == 1
    for earlier, request in enumerate(backend.requests[1:]):
        assert f"Part {earlier}." in request.records[1].message.text
    told = [r.message.text.split()[1] for q in backend.requests for r in q.records[1:-1]
            if r.message.text.startswith("message")]  # fmt: skip
    assert told == [str(n) for n in range(38)]
    assert report.changed


def test_a_group_too_long_for_the_window_is_clipped_for_the_summary_only(talk: Talk) -> None:
    backend = ScriptedBackend(["It was long.", "more", "more"])
    options = SendOptions(context_window=700, max_tokens=100)
    ctx = talk(backend, options=options, compression=Summarize(keep=1, target=60))
    ctx.ask(Extend([Message.user("word " * 3_000), Message.user("next")]))

    ctx.ask(Compress())

    assert "characters left out" in backend.requests[0].records[0].message.text
    assert ctx.ask(Incremental())[0].text == "next"


def test_the_editor_has_the_last_word(talk: Talk) -> None:
    shown: list[Any] = []

    def editor(summary: Message | None, kept: tuple[Message, ...]) -> Any:
        shown.append((summary, kept))
        return Message.system("Edited."), kept[1:]

    ctx = talk(["Short."], on_compressed=editor)
    ids = ctx.ask(Extend(chat(8)))

    report = ctx.ask(Compress(Summarize(keep=2)))

    ((summary, kept),) = shown
    assert "Short." in summary.text
    assert [message.id for message in kept] == list(ids[6:])
    assert texts(ctx)[0] == "Edited."
    assert [message.id for message in ctx.ask(Incremental())] == [ids[7]]
    assert report.removed_ids == ids[:7]


@pytest.mark.parametrize(
    "wanted",
    [
        "text",
        (Message.system("x"),),
        (None, []),
        (Message.system(" "), []),
        (Message.system("x"), ["y"]),
        (Message.system("x"), [Message.tool("gone", "?")]),
        (Message.system("word " * 3_000), []),
    ],
)
def test_what_the_editor_returns_is_checked(talk: Talk, wanted: Any) -> None:
    ctx = talk(["Short."], on_compressed=lambda *_: wanted)
    ctx.ask(Extend(chat(8)))
    before = ctx.ask(ToJsonl())

    with pytest.raises(CompressionError):
        ctx.ask(Compress(Summarize(keep=2)))

    assert ctx.ask(ToJsonl()) == before


def test_an_editor_that_asks_the_conversation_fails_fast(talk: Talk) -> None:
    caught: list[Exception] = []

    def editor(*_: object) -> None:
        try:
            ctx.ask(Len())
        except DeadlockError as error:
            caught.append(error)

    ctx = talk(["Short."], on_compressed=editor)
    ctx.ask(Extend(chat(8)))

    assert ctx.ask(Compress(Summarize(keep=2))).changed
    assert len(caught) == 1


def test_a_strategy_that_cuts_through_a_group_is_refused(talk: Talk) -> None:
    class Blunt(Strategy):
        def plan(self, view: PlanningView) -> CompressionPlan:
            return CompressionPlan(cut=2)

    ctx = talk()
    ctx.ask(Extend(loop(1)))

    with pytest.raises(CompressionError, match="inside a group"):
        ctx.ask(Compress(Blunt()))


def test_a_strategy_that_frees_nothing_is_refused(talk: Talk) -> None:
    class Idle(Strategy):
        def plan(self, view: PlanningView) -> CompressionPlan:
            return CompressionPlan(replaced={0: view.history[0]})

    ctx = talk()
    ctx.ask(Extend(chat(4)))

    with pytest.raises(CompressionError, match="instead of"):
        ctx.ask(Compress(Idle()))


def test_a_compression_has_a_deadline(talk: Talk) -> None:
    ctx = talk([Hold(), "never"])
    ctx.ask(Extend(chat(8)))

    with pytest.raises(TurnTimeout):
        ctx.ask(Compress(Summarize(keep=2), SendOptions(timeout=0.1)))


def test_past_the_soft_limit_it_runs_before_anybody_needs_it(talk: Talk, seen: Seen) -> None:
    backend = ScriptedBackend(["Answer.", "They counted."])
    options = SendOptions(context_window=1_000, max_tokens=100, soft_limit=0.3)
    ctx = talk(backend, options=options, compression=Summarize(keep=2), on_change=seen)
    ctx.ask(Extend(chat(8)))

    ctx.ask(Send(messages=[Message.user("And?")]))

    seen.wait_for(events.Compressed)
    assert texts(ctx)[-2:] == ["And?", "Answer."]
    assert "They counted." in texts(ctx)[0]


def test_a_cut_off_summary_is_marked_as_such(talk: Talk) -> None:
    cut = Message.assistant("They cou").model_copy(update={"finish_reason": FinishReason.LENGTH})
    ctx = talk([cut])
    ctx.ask(Extend(chat(8)))

    ctx.ask(Compress(Summarize(keep=2)))

    assert ctx.ask(Compressed())[0].finish_reason is FinishReason.LENGTH


def test_strategies_without_a_model_ask_no_model(talk: Talk) -> None:
    backend = ScriptedBackend([])
    ctx = talk(backend)
    ctx.ask(Extend([message for n in range(6) for message in loop(n)]))

    for strategy in (EvictToolResults(1), SlidingWindow(3), TokenBudget(100)):
        assert ctx.ask(Compress(strategy)).changed

    assert backend.requests == []
    assert len(ctx.ask(Incremental())) == 1


def test_a_stop_answers_who_waits_for_a_compression(talk: Talk) -> None:
    hold = Hold()
    ctx = talk([hold, "never"])
    ctx.ask(Extend(chat(8)))
    reply = ctx.actor_ref.ask(Compress(Summarize(keep=2)), block=False)
    wait_for(hold.entered)

    ctx.stop()

    with pytest.raises(Exception, match="stopped"):
        reply.get(timeout=WAIT)


def test_full_is_said_with_every_number(talk: Talk) -> None:
    ctx = talk(["Short.", "Shorter."], compression=Summarize(keep=2))
    ctx.ask(Extend(chat(4, words=600)))

    with pytest.raises(ContextFull) as raised:
        ctx.ask(Send(SendOptions(context_window=900, max_tokens=100)))

    assert str(raised.value.needed) in str(raised.value)


@pytest.mark.parametrize("failing", range(6))
def test_a_failure_at_any_step_leaves_the_zones_as_they_were(talk: Talk, failing: int) -> None:
    error = BackendError("down", kind=ErrorKind.AUTH)
    script = [f"Part {n}." for n in range(failing)]
    ctx = talk(
        [*script, error],
        options=SendOptions(context_window=500, max_tokens=100),
        compression=Summarize(keep=2, target=60),
    )
    ctx.ask(Extend(chat(40)))
    before = ctx.ask(ToJsonl())

    with pytest.raises(CompressionError, match="down"):
        ctx.ask(Compress())

    assert ctx.ask(ToJsonl()) == before


@pytest.mark.parametrize("step", range(4))
async def test_a_cancellation_at_any_step_leaves_the_zones_as_they_were(
    talk: Talk, step: int
) -> None:
    hold = Hold()
    ctx = talk(
        [*(f"Part {n}." for n in range(step)), hold, "never"],
        options=SendOptions(context_window=500, max_tokens=100),
        compression=Summarize(keep=2, target=60),
    )
    await ctx.aask(Extend(chat(40)))
    before = await ctx.aask(ToJsonl())
    task = asyncio.create_task(ctx.aask(Compress()))
    await asyncio.to_thread(wait_for, hold.entered)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert await ctx.aask(ToJsonl()) == before
