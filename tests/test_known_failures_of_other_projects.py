"""Failures that were reported of other projects, and do not happen here.

Each test names the report. What holds in general is shown by the property tests; these are the
stories behind them. Each goes for conversations in memory and for kept ones, whose stores must hold
at the end what the conversations hold; and no request may break a rule of any vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_context import (
    AgentContext,
    Append,
    BackendError,
    Completion,
    Compress,
    ContextRef,
    ErrorKind,
    EstimateTokens,
    Extend,
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
    TextDelta,
    TokenBudget,
    ToolCall,
    Usage,
)
from agent_context._actor.recovery import load_state
from agent_context.backend import Request
from agent_context.compression import EvictToolResults, default_strategy
from agent_context.errors import CompressionError, StoreError
from agent_context.messages import ImagePart
from agent_context.models import ModelFacts
from agent_context.protocol import Clear, Compressed, Immutable, Len, Retain, Rewind
from agent_context.stores.memory import MemoryStore
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Write
from agent_context.wire.repair import repair_history
from agent_context_backends.scripted import Hold, ScriptedBackend
from tests.histories import DIALECTS
from tests.support.waiting import WAIT, wait_for
from tests.wire.rules import record_faults

SYSTEM = Message.system("You are terse.")

Started = Callable[..., tuple[ContextRef, ScriptedBackend]]


@pytest.fixture(params=["in memory", "kept"])
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """Starts conversations; looks at the end at what they sent and at what is kept of them."""
    store = SqliteStore(tmp_path / "talk.db") if request.param == "kept" else None
    begun: list[tuple[ContextRef, ScriptedBackend]] = []

    def start(*script: Any, **settings: Any) -> tuple[ContextRef, ScriptedBackend]:
        given = script[0] if script else None
        backend = given if isinstance(given, ScriptedBackend) else ScriptedBackend(script)
        ref = AgentContext.start(backend, immutable=[SYSTEM], store=store, **settings)
        begun.append((ref, backend))
        return begun[-1]

    yield start
    for ref, backend in begun:
        check_requests(backend)
        if store is not None:
            kept = load_state(store, ref.id).zones
            assert [r.message for r in kept] == list(ref.ask(Messages()))
        ref.stop()
    if store is not None:
        store.close()


def check_requests(backend: ScriptedBackend) -> None:
    for asked in backend.requests:
        called: set[str] = set()
        for record in asked.records:
            assert record.role != "tool" or called.issuperset(record.call_ids)
            called.update(record.call_ids)
        for rules in DIALECTS:
            assert record_faults(repair_history(asked.records, rules), rules) == []


def called(name: str) -> Message:
    return Message.assistant(tool_calls=[ToolCall(id=name, name="find", arguments="{}")])


def turn(name: str) -> list[Message]:
    found = Message.tool(name, f"{name} " + "found " * 200)
    return [Message.user(f"find {name}"), called(name), found, Message.assistant("Here.")]


def paired(messages: tuple[Message, ...]) -> bool:
    calls = [call.id for message in messages for call in message.tool_calls]
    results = [message.tool_call_id for message in messages if message.tool_call_id]
    return calls == results


@pytest.mark.parametrize(
    "strategy",
    [Summarize(keep=n) for n in range(9)]
    + [SlidingWindow(1), TokenBudget(300), default_strategy(keep=2), EvictToolResults(0)],
)
def test_no_result_outlives_its_call(started: Started, strategy: Any) -> None:
    """langchain#38352, #33265, #35313, openai-agents#4322, autogen#7955, litellm#10696, #6505,
    semantic-kernel#13062."""
    ctx, _ = started("They looked things up.", "Fine.")
    ctx.ask(Extend([message for name in "abc" for message in turn(name)]))

    ctx.ask(Compress(strategy))
    ctx.ask(Send(messages=[Message.user("and?")]))

    assert paired(ctx.ask(Messages()))
    assert ctx.ask(Messages())[1].tool_call_id is None


def test_a_call_and_its_result_may_be_far_apart(started: Started) -> None:
    """agent-framework#7212: grouping by adjacency."""
    ctx, _ = started()
    ctx.ask(Extend([*turn("a"), called("b"), Message.user("hurry"), Message.assistant("Soon.")]))
    ctx.ask(Extend([Message.tool("b", "late"), Message.assistant("Done.")]))

    ctx.ask(Compress(TokenBudget(80)))

    assert paired(ctx.ask(Messages()))


def test_a_history_of_nothing_but_tools_can_be_cut(started: Started) -> None:
    """strands harness-sdk#2173: no plain user message, so nothing could be trimmed."""
    ctx, _ = started()
    ctx.ask(Append(Message.user("go on until it is done")))
    ctx.ask(Extend([m for n in range(30) for m in turn(f"c{n}")[1:3]]))

    report = ctx.ask(Compress(TokenBudget(600)))

    assert report.after.total <= 600
    assert paired(ctx.ask(Messages()))


def test_a_turn_can_follow_calls_that_leave_no_room(started: Started) -> None:
    """The same of what was said last: every later turn found the window full."""
    ctx, backend = started("Never mind.", options=SendOptions(context_window=600, max_tokens=100))
    ctx.ask(Extend([Message.user("find a"), called("a"), Message.tool("a", "found " * 600)]))

    ctx.ask(Send(messages=[Message.user("leave it")]))

    sent = [record.message.text for record in backend.requests[0].records]
    assert sent[:2] + sent[3:] == [SYSTEM.text, "", "leave it"]
    assert sent[2].startswith("[tool result of 3600 characters left out; message ")


def test_a_turn_can_follow_words_that_leave_no_room(started: Started) -> None:
    """The same without tools, and with a pair of calls that a stub would not shorten."""
    ctx, backend = started("Never mind.", options=SendOptions(context_window=600, max_tokens=100))
    call = ToolCall(id="c", name="write", arguments='{"text": "' + "word " * 600 + '"}')
    ctx.ask(Extend([Message.assistant(tool_calls=[call]), Message.tool("c", "written")]))

    ctx.ask(Send(messages=[Message.user("go on")]))

    assert [record.message.text for record in backend.requests[0].records][1:] == ["go on"]


def test_an_interim_result_leaves_its_call_open(started: Started) -> None:
    """adk-python#4740: a long call was compressed away, and its answer came later."""
    ctx, backend = started("They looked things up.", "It is done.")
    ctx.ask(Extend([*turn("a"), Message.user("book it"), called("book")]))
    ctx.ask(Append(Message.tool("book", "queued", interim=True)))
    ctx.ask(Append(Message.assistant("I have asked for it.")))

    ctx.ask(Compress(Summarize(keep=0)))
    ctx.ask(Append(Message.tool("book", "booked")))
    ctx.ask(Send())

    sent = [record.message.text for record in repair_history(backend.requests[-1].records)]
    assert "booked" in sent
    assert "queued" not in sent


def test_a_pending_call_is_not_compressed_away(started: Started) -> None:
    """adk-python#4740, #5602: a later answer found no call."""
    ctx, _ = started("They looked things up.")
    ctx.ask(Extend([*turn("a"), *turn("b"), Message.user("book it"), called("confirm")]))

    ctx.ask(Compress(Summarize(keep=0)))
    ctx.ask(Append(Message.tool("confirm", "yes")))

    assert paired(ctx.ask(Messages()))


def test_a_call_that_nobody_will_answer_does_not_stop_compression_for_ever(
    started: Started,
) -> None:
    """adk-python#7236."""
    ctx, _ = started("They looked things up.")
    ctx.ask(Extend([Message.user("go"), called("lost"), *turn("a"), *turn("b")]))

    assert ctx.ask(Compress(Summarize(keep=4))).changed


def test_an_error_is_not_a_summary(started: Started) -> None:
    """langchain#38867: the history became 'Error generating summary'."""
    ctx, _ = started(BackendError("429", kind=ErrorKind.RATE_LIMITED, retryable=False))
    ctx.ask(Extend([*turn("a"), *turn("b")]))

    with pytest.raises(CompressionError):
        ctx.ask(Compress(Summarize(keep=2)))

    assert ctx.ask(Len()) == 9
    assert ctx.ask(Compressed()) == ()


def test_nothing_to_summarise_is_nothing_done(started: Started) -> None:
    """langchain#39261: a placeholder took the place of the history."""
    ctx, backend = started()
    ctx.ask(Append(Message.user("hello")))

    report = ctx.ask(Compress(Summarize(keep=0)))

    assert not report.changed
    assert backend.requests == []
    assert ctx.ask(Incremental())[0].text == "hello"


def test_a_summary_and_what_it_stands_for_change_places_at_once(started: Started) -> None:
    """agent-framework#8099: messages were marked as left out, and the summary was not kept;
    openai-agents#3116: a history was cleared, and what should follow was not added."""
    ctx, _ = started("They looked things up.")
    ctx.ask(Extend([*turn("a"), *turn("b")]))
    seen = [ctx.ask(Messages())]
    before = seen[0]

    reply = ctx.actor_ref.ask(Compress(Summarize(keep=4)), block=False)
    while len(seen[-1]) == len(before):
        seen.append(ctx.ask(Messages()))

    assert reply.get(timeout=WAIT).changed
    assert set(seen[:-1]) == {before}
    assert seen[-1][2:] == before[5:]
    assert "They looked things up." in seen[-1][1].text


class Refusing(MemoryStore):
    """Refuses the next write when told to."""

    refuses = False

    def write(self, batch: Sequence[Write]) -> Sequence[StoreError | None]:
        if not self.refuses:
            return super().write(batch)
        self.refuses = False
        return [StoreError("no room")] * len(batch)


@pytest.mark.parametrize(
    "edit",
    [
        Clear(),
        Rewind(2),
        Retain(Role.USER),
        FromJsonl('{"role": "user", "content": "new"}'),
        Extend([Message.user("more"), Message.assistant("Yes.")]),
        Compress(SlidingWindow(1)),
        Compress(Summarize(keep=2)),
        Send(messages=[Message.user("more")]),
    ],
    ids=lambda edit: type(edit).__name__,
)
def test_a_change_is_kept_whole_or_not_at_all(edit: Any) -> None:
    """openai-agents#3116: the old history was gone, and the new one was not added."""
    store = Refusing()
    ctx = AgentContext.start(ScriptedBackend(["So it went."] * 2), store=store, id="s")
    ctx.ask(Extend([*turn("a"), *turn("b")]))
    before = ctx.ask(Messages())
    store.refuses = True

    with pytest.raises(StoreError):
        ctx.ask(edit)
    assert ctx.ask(Messages()) == before
    ctx.ask(edit)

    assert ctx.ask(Messages()) != before
    assert tuple(r.message for r in load_state(store, "s").zones) == ctx.ask(Messages())
    ctx.stop()


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("window", [1_000, 2_000, 9_000])
def test_an_overflowing_history_is_summarised_in_pieces_that_fit(
    started: Started, window: int, thinks: bool
) -> None:
    """letta#3279: the summariser had the same window as the talk that was too long for it."""
    backend = ScriptedBackend(
        [lambda _: "They talked."] * 200,
        facts=ModelFacts(context_window=window, max_output=window, thinks=thinks),
    )
    ctx, _ = started(backend, options=SendOptions(max_tokens=150), compression=Summarize(keep=2))
    ctx.ask(Extend([Message.user("word " * 200) for _ in range(window // 25)]))

    ctx.ask(Send(messages=[Message.user("and?")]))

    facts = backend.model_facts(None)
    for asked in backend.requests:
        sizes = (backend.estimate_tokens(record.message, facts) for record in asked.records)
        assert asked.options.max_tokens is not None
        assert sum(sizes) + asked.options.max_tokens <= window


def test_what_is_added_while_compressing_is_kept_and_a_clear_stays_a_clear(
    started: Started,
) -> None:
    """openai-agents-python#4679."""
    hold = Hold()
    ctx, _ = started(hold, "Stale.")
    ctx.ask(Extend([*turn("a"), *turn("b")]))
    reply = ctx.actor_ref.ask(Compress(Summarize(keep=2)), block=False)
    wait_for(hold.entered)

    ctx.ask(Clear())
    ctx.ask(Append(Message.user("fresh start")))
    hold.release()
    reply.get(timeout=WAIT)

    assert [message.text for message in ctx.ask(Messages())] == [SYSTEM.text, "fresh start"]


def test_the_system_prompt_is_never_what_goes(started: Started) -> None:
    """semantic-kernel#12612."""
    ctx, _ = started()
    ctx.ask(Extend([*turn("a"), *turn("b")]))

    ctx.ask(Compress(TokenBudget(1)))

    assert ctx.ask(Immutable()) == (SYSTEM,)


def test_evicting_results_frees_what_it_says(started: Started) -> None:
    """agent-framework#7393: the full text was inserted again."""
    ctx, _ = started()
    ctx.ask(Extend([message for name in "abcd" for message in turn(name)]))
    before = ctx.ask(EstimateTokens()).incremental

    report = ctx.ask(Compress(EvictToolResults(1)))

    assert ctx.ask(EstimateTokens()).incremental == report.after.incremental < before / 2


def test_calls_count_and_images_do_not_count_as_text(started: Started) -> None:
    """llama_index#21950: calls counted nothing; langchain#40741, #39697: base64 counted as text."""
    call = ToolCall(id="c", name="write", arguments='{"text": "' + "word " * 400 + '"}')
    picture = ImagePart(url="data:image/png;base64," + "A" * 400_000, width=512, height=512)
    calls, _ = started()
    calls.ask(Append(Message.assistant(tool_calls=[call])))
    images, _ = started()
    images.ask(Append(Message.user(["What is this?", picture])))

    sealed, _ = started()
    thought = {"type": "reasoning", "summary": [], "encrypted_content": "A" * 100_000}
    sealed.ask(Append(Message.model_validate(
        {"role": "assistant", "content": "Yes.", "output_items": [thought]}
    )))  # fmt: skip

    assert calls.ask(EstimateTokens()).incremental > 400
    assert 50 < images.ask(EstimateTokens()).incremental < 2_000
    assert sealed.ask(EstimateTokens()).incremental < 100


def test_the_window_is_watched_in_the_tokens_of_the_vendor(started: Started) -> None:
    """deepagents#520: what was counted was 22 % too little, so the window overflowed."""
    counted: list[int] = []

    def answer(asked: Request) -> Completion:
        sizes = (backend.estimate_tokens(r.message, asked.facts) for r in asked.records)
        counted.append(int(sum(sizes) * 1.3))
        usage = Usage(input_tokens=counted[-1], output_tokens=60)
        return Completion(message=Message.assistant("word " * 60), usage=usage)

    options = SendOptions(context_window=2_000, max_tokens=200)
    ctx, backend = started(*[answer] * 40, options=options, compression=TokenBudget())
    for _ in range(40):
        ctx.ask(Send(messages=[Message.user("word " * 60)]))

    assert 1_000 < max(counted) <= 1_800


def test_compression_does_not_fire_again_and_again(started: Started) -> None:
    """letta#3242: two counters disagreed."""
    ctx, backend = started(
        "They talked.", *(f"Answer {n}." for n in range(8)),
        options=SendOptions(context_window=1_500, max_tokens=200),
        compression=Summarize(keep=2),
    )  # fmt: skip
    ctx.ask(Extend([Message.user("word " * 150) for _ in range(9)]))

    for n in range(4):
        ctx.ask(Send(messages=[Message.user(f"question {n}")]))

    assert len(backend.requests) == 5


def test_a_cancelled_stream_leaves_a_history_that_goes_on(started: Started) -> None:
    """openai-agents-python#1895, pydantic-ai#7977, #4728: an unanswered call made it unusable."""
    hold = Hold()
    ctx, backend = started([TextDelta("Let me"), hold], "Here you are.")
    with ctx.ask(SendStream(messages=[Message.user("find it")])) as stream:
        next(stream)

    ctx.ask(Send(messages=[Message.user("and?")]))

    sent = [record.message.text for record in backend.requests[1].records]
    assert sent == [SYSTEM.text, "find it", "Let me", "and?"]


def test_what_changes_every_turn_goes_last(started: Started) -> None:
    """home-generative-agent#617, bolna#817: a clock in the system prompt, no cache hit ever."""
    ctx, backend = started("1", "2")

    for clock in ("12:00", "12:01"):
        ctx.ask(Send(SendOptions(scratch=clock), messages=[Message.user("go")]))

    first, second = ([r.body for r in request.records] for request in backend.requests)
    assert second[: len(first) - 1] == first[:-1]


def test_the_same_words_twice_are_two_turns(started: Started) -> None:
    """agent-framework 1.23: the second identical turn was not stored."""
    ctx, _ = started("pong", "pong")

    for _ in range(2):
        ctx.ask(Send(messages=[Message.user("ping")]))

    assert [m.text for m in ctx.ask(Messages())[1:]] == ["ping", "pong", "ping", "pong"]
