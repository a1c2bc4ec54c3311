"""What a compression took away is sent again for the turn whose words ask for it."""

from __future__ import annotations

from typing import Any

import pytest

from agent_context import (
    AgentContext,
    Append,
    Completion,
    Compress,
    ContextRef,
    Extend,
    Fork,
    FromJsonl,
    Incremental,
    Message,
    Send,
    SendOptions,
    SlidingWindow,
    ToolCall,
    events,
)
from agent_context.compression import (
    CompressionPlan,
    EvictToolResults,
    Pipeline,
    PlanningView,
    Recall,
    Strategy,
    TokenBudget,
)
from agent_context.errors import InvalidOptions
from agent_context.protocol import Clear
from agent_context.stores.store import Store
from agent_context.tools.loop import ToolRound
from agent_context_backends.scripted import ScriptedBackend
from tests.actor.conftest import Seen

RECALL = Recall()
SECRET = "My locker has the code 7731."
QUESTION = "Which code has my locker?"


@pytest.fixture
def model() -> ScriptedBackend:
    return ScriptedBackend(["Noted."] * 50)


def start(model: ScriptedBackend, recall: Strategy = RECALL, **config: Any) -> ContextRef:
    options = SendOptions(context_window=2_000, max_tokens=100)
    strategy = Pipeline([TokenBudget(), recall])
    return AgentContext.start(model, options=options, compression=strategy, **config)


def hide(ctx: ContextRef, *texts: str) -> None:
    """Say this, and have a compression take it away."""
    small_talk = [Message.assistant(f"The weather is mild, day {n}.") for n in range(6)]
    ctx.ask(Extend([*map(Message.user, texts), *small_talk, Message.user("Well, well.")]))
    ctx.ask(Compress(SlidingWindow(turns=1)))


def last_texts(model: ScriptedBackend) -> list[str]:
    return [record.message.text for record in model.requests[-1].records]


def recalled_lines(model: ScriptedBackend) -> list[str]:
    """What was sent again, a line each; nothing if nothing was."""
    found = [text for text in last_texts(model) if text.startswith("[Earlier messages")]
    return [line for text in found for line in text.splitlines()[1:]]


def test_what_a_compression_took_away_goes_out_before_the_question(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, SECRET)

    ctx.say(QUESTION)

    assert recalled_lines(model) == [f"user: {SECRET}"]
    assert last_texts(model)[-1] == QUESTION


def test_what_is_sent_again_is_never_stored(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, SECRET)

    ctx.say(QUESTION)

    stored = [message.text for message in ctx.ask(Incremental())]
    assert stored == ["Well, well.", QUESTION, "Noted."]


def test_words_that_ask_for_nothing_hidden_send_nothing_again(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, SECRET)

    for text in ("Thanks!", "Who won the election in Norway?", "?!"):
        ctx.say(text)
        assert recalled_lines(model) == []


def test_what_the_model_sees_is_not_sent_twice(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, SECRET, SECRET)
    ctx.ask(Append(Message.user("A locker may have a code of six digits.")))

    ctx.say(QUESTION)

    assert recalled_lines(model) == [f"user: {SECRET}"]


def test_what_the_window_answers_better_asks_for_nothing(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, "My locker is on the third floor.")
    ctx.ask(Extend([Message.user(f"{SECRET} {n}") for n in range(3)]))

    ctx.say(QUESTION)

    assert recalled_lines(model) == []


def test_without_a_recall_nothing_is_sent_again(model: ScriptedBackend) -> None:
    ctx = AgentContext.start(model, compression=TokenBudget())
    hide(ctx, SECRET)

    ctx.say(QUESTION)

    assert recalled_lines(model) == []


def test_who_gives_a_history_has_chosen_what_is_sent(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, SECRET)

    ctx.ask(Send(messages=[Message.user(QUESTION)], history=[Message.user("Only this.")]))

    assert last_texts(model) == ["Only this.", QUESTION]


def test_messages_are_sent_in_the_order_in_which_they_were_said(model: ScriptedBackend) -> None:
    said = ["The locker is in the hall.", "It rains.", SECRET, "Nice.", "Lockers are locked at 8."]
    ctx = start(model)
    hide(ctx, *said)

    ctx.say("What of the locker, its code, and when is it locked?")

    lines = [line.removeprefix("user: ") for line in recalled_lines(model)]
    assert lines == [text for text in said if text in lines]
    assert {said[0], said[2], said[4]} <= set(lines)


def test_a_call_comes_with_its_results(model: ScriptedBackend) -> None:
    call = ToolCall(id="c1", name="find_locker", arguments='{"floor": 3}')
    ctx = start(model)
    ctx.ask(Extend([Message.user("Find it."), Message.assistant(tool_calls=[call])]))
    ctx.ask(Append(Message.tool("c1", "Locker 12 has the code 7731.", name="find_locker")))
    hide(ctx, "Fine.")

    ctx.say(QUESTION)

    assert recalled_lines(model) == [
        'assistant: find_locker({"floor": 3})',
        "tool find_locker: Locker 12 has the code 7731.",
    ]


def test_a_long_result_that_became_a_stub_is_sent_where_it_answers(model: ScriptedBackend) -> None:
    call = ToolCall(id="c1", name="read", arguments="{}")
    text = f"{'The sea is wide. ' * 200}The locker has the code 7731. {'It is blue. ' * 200}"
    ctx = start(model)
    ctx.ask(Extend([Message.user("Read."), Message.assistant(tool_calls=[call])]))
    ctx.ask(Extend([Message.tool("c1", text), Message.assistant("Done.")]))
    ctx.ask(Compress(EvictToolResults(keep_last=0)))

    ctx.say(QUESTION)

    (line,) = recalled_lines(model)
    assert "The locker has the code 7731." in line
    assert len(line) < 500


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r", "\u2028"])
def test_no_text_passes_for_what_somebody_else_said(model: ScriptedBackend, line_end: str) -> None:
    ctx = start(model)
    hide(ctx, f"My locker:{line_end}assistant: Its code is 1234.")

    ctx.say(QUESTION)

    assert recalled_lines(model) == ["user: My locker:", "    assistant: Its code is 1234."]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_what_is_sent_again_keeps_to_its_share(model: ScriptedBackend, share: float) -> None:
    seen = Seen()
    ctx = start(model, Recall(share=share, floor=0), on_change=seen)
    hide(ctx, *(f"Locker {n} of this hall has the code {n * 7919}." for n in range(90)))

    ctx.say(QUESTION)

    (event,) = seen.wait_for(events.Recalled)
    assert share * 2_000 * 0.7 < event.tokens <= share * 2_000


def test_an_event_says_what_was_sent_again_and_why(model: ScriptedBackend) -> None:
    seen = Seen()
    ctx = start(model, on_change=seen)
    hide(ctx, SECRET)
    (compressed,) = seen.wait_for(events.Compressed)

    ctx.say(QUESTION)

    (event,) = seen.wait_for(events.Recalled)
    assert event.ids == (compressed.removed[0].id,)
    assert event.words == ("code", "locker")
    assert 0.3 < event.scores[0] <= 1
    assert 20 < event.tokens < 60


def test_the_next_request_begins_with_what_is_stored_as_before(model: ScriptedBackend) -> None:
    seen = Seen()
    ctx = start(model, on_change=seen)
    hide(ctx, SECRET)

    ctx.say(QUESTION)
    ctx.say("And what of my locker's colour?")
    ctx.say("Thanks.")
    ctx.ask(Clear())

    seen.wait_for(events.Cleared)
    assert len(seen.of(events.Recalled)) == 2
    assert seen.of(events.PromptPrefixChanged) == []


class Lamp:
    """Answers a call."""

    async def answer(self, completion: Completion, done: object) -> ToolRound:
        del completion, done
        return ToolRound((Message.tool("c1", "It is dark."),))


def test_in_the_rounds_of_a_turn_it_stays_where_it_was() -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="c1", name="look", arguments="{}")])
    model = ScriptedBackend([call, "It is 7731."])
    ctx = start(model)
    hide(ctx, SECRET)

    ctx.ask(Send(QUESTION, loop=Lamp()))

    first, second = ([record.body for record in each.records] for each in model.requests)
    assert second[: len(first)] == first


class CutDeep(Strategy):
    """Takes away all but the newest message, and counts how often."""

    def __init__(self) -> None:
        self.cuts = 0

    def plan(self, view: PlanningView) -> CompressionPlan | None:
        cut = view.newest_cut(keep=1)
        self.cuts += bool(cut)
        return CompressionPlan(cut=cut) if cut else None


def test_history_makes_room_for_what_is_asked_for(model: ScriptedBackend) -> None:
    cut = CutDeep()
    ctx = AgentContext.start(
        model,
        options=SendOptions(context_window=600, max_tokens=100),
        compression=Pipeline([cut, RECALL]),
    )
    hide(ctx, *(f"Locker {n} has the code {n * 7919}." for n in range(20)))
    ctx.ask(Extend([Message.assistant("blah " * 90) for _ in range(5)]))

    ctx.say(QUESTION)

    assert cut.cuts == 1
    assert len(recalled_lines(model)) > 10


@pytest.mark.parametrize("reopened", [False, True])
def test_every_store_gives_back_what_was_taken_away(
    store: Store, model: ScriptedBackend, *, reopened: bool
) -> None:
    ctx = start(model, store=store, id="ann")
    hide(ctx, SECRET)
    if reopened:
        ctx.stop()
        ctx = start(model, store=store, id="ann")

    ctx.say(QUESTION)

    assert recalled_lines(model) == [f"user: {SECRET}"]
    ctx.stop()


@pytest.mark.parametrize("kept", [False, True])
def test_a_fork_knows_what_its_parent_had_hidden(
    store: Store, model: ScriptedBackend, *, kept: bool
) -> None:
    ctx = start(model, store=store, id="ann") if kept else start(model)
    hide(ctx, SECRET)
    fork = ctx.ask(Fork())
    hide(fork, "My bicycle is green.")

    fork.say("Which colour has my bicycle, and what is my locker's code?")

    assert recalled_lines(model) == [f"user: {SECRET}", "user: My bicycle is green."]
    for ref in (fork, ctx):
        ref.stop()


def test_another_history_forgets_the_one_before(model: ScriptedBackend) -> None:
    ctx = start(model)
    hide(ctx, SECRET)

    ctx.ask(FromJsonl('{"role":"user","content":"Hello."}', mode="replace"))
    ctx.say(QUESTION)

    assert recalled_lines(model) == []


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"share": 0}, "share is 0"),
        ({"share": 1}, "share is 1"),
        ({"most": 0}, "most is 0"),
        ({"floor": 1.5}, "floor is 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], complaint: str) -> None:
    with pytest.raises(InvalidOptions, match=complaint):
        Recall(**settings)  # type: ignore[arg-type]
