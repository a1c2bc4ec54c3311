"""A conversation tells what its vendors' caches gave, and what broke a prefix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from agent_context import (
    Append,
    BackendError,
    Cancel,
    Completion,
    Compress,
    ErrorKind,
    Extend,
    FinishReason,
    Fork,
    Message,
    Send,
    SendOptions,
    SendStream,
    Tool,
    ToolCall,
    Usage,
    events,
)
from agent_context.backend import Request
from agent_context.compression import EvictToolResults, default_strategy
from agent_context.errors import TurnCancelled
from agent_context.models import CachePolicy, ModelFacts
from agent_context.prompt_cache import PrefixChangeCause, PrefixReport
from agent_context.protocol import CacheReport, Rewind, Update
from agent_context.stream_events import TextDelta
from agent_context_backends.scripted import Hold, ScriptedBackend, ScriptItem
from tests.actor.conftest import Seen, Talk
from tests.support.waiting import wait_for

RULE = CachePolicy(ratio=0.1, min_tokens=100, price=2.0)
LONG = Message.user("It rains again, as it has rained for a week. " * 200)


def facts(rule: CachePolicy | None = RULE) -> ModelFacts:
    return ModelFacts(context_window=128_000, max_output=4_096, cache=rule)


def answer(text: str = "Yes.", **usage: Any) -> Completion:
    return Completion(
        message=Message.assistant(text),
        finish_reason=FinishReason.STOP,
        usage=Usage(**usage),
        model="m",
    )


def cached_by(requests: Iterable[int]) -> list[ScriptItem]:
    """Answers of which each says how much of its input came from a cache."""

    def reply(cached: int) -> ScriptItem:
        return lambda _: answer(input_tokens=2_500, output_tokens=2, cached_tokens=cached)

    return [reply(cached) for cached in requests]


def model(script: Iterable[ScriptItem] = (), rule: CachePolicy | None = RULE) -> ScriptedBackend:
    return ScriptedBackend([*script, *(lambda _: "Yes." for _ in range(20))], facts=facts(rule))


def said(text: str = "And now?", **options: Any) -> Send:
    return Send(SendOptions(**options), messages=[Message.user(text)])


def last(ctx: Any) -> PrefixReport:
    report: PrefixReport | None = ctx.ask(CacheReport()).last
    assert report is not None
    return report


def test_a_new_conversation_has_an_empty_ledger(talk: Talk) -> None:
    report = talk(model()).ask(CacheReport())

    assert (report.turns, report.cached, report.saved, report.last) == (0, 0, 0.0, None)


def test_a_turn_that_only_adds_holds_the_prefix(talk: Talk, seen: Seen) -> None:
    ctx = talk(model(cached_by([0, 2_400])), on_change=seen)
    ctx.ask(Send(messages=[LONG]))

    ctx.ask(said())

    report = last(ctx)
    assert report.cause is None
    assert report.before == report.shared == report.predicted == 2_500
    assert (report.cached, report.missed) == (2_400, False)
    totals = ctx.ask(CacheReport())
    assert (totals.turns, totals.input_tokens, totals.cached) == (2, 5_000, 2_400)
    assert totals.saved == pytest.approx(2_160)
    assert totals.money == {"USD": pytest.approx(0.00432)}
    seen.wait_for(events.Appended, 4)
    assert not {"PromptPrefixChanged", "PromptCacheMiss"} & set(seen.names)


def test_a_collapse_is_announced(talk: Talk, seen: Seen) -> None:
    ctx = talk(model(cached_by([0, 0])), on_change=seen)
    ctx.ask(Send(messages=[LONG]))

    ctx.ask(said())

    (event,) = seen.wait_for(events.PromptCacheMiss)
    assert (event.predicted, event.cached) == (2_500, 0)
    assert ctx.ask(CacheReport()).missed == 1


def test_a_vendor_that_reports_nothing_is_not_accused(talk: Talk, seen: Seen) -> None:
    ctx = talk(model(), on_change=seen)
    ctx.ask(Send(messages=[LONG]))

    ctx.ask(said())

    report = last(ctx)
    assert (report.cached, report.saved, report.missed) == (None, None, False)
    assert (report.predicted or 0) > 1_000


def test_a_model_without_a_rule_has_its_prefix_watched_all_the_same(talk: Talk) -> None:
    ctx = talk(model(rule=None))
    ctx.ask(Send(messages=[LONG]))

    ctx.ask(said())

    assert last(ctx).shared > 1_000
    assert last(ctx).predicted is None


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"model": "other"}, PrefixChangeCause.MODEL),
        ({"effort": "high"}, PrefixChangeCause.EFFORT),
        ({"thinking": True}, PrefixChangeCause.THINKING),
        ({"tools": [Tool(name="f")]}, PrefixChangeCause.TOOLS),
        ({"tool_choice": "none"}, PrefixChangeCause.TOOL_CHOICE),
        ({"response_format": {"type": "json_object"}}, PrefixChangeCause.RESPONSE_FORMAT),
        ({"extra": {"user_id": "u"}}, PrefixChangeCause.CACHE_KEY),
        ({"extra": {"service_tier": "flex"}}, PrefixChangeCause.OPTION),
    ],
)
def test_an_option_that_breaks_the_prefix_is_announced(
    talk: Talk, seen: Seen, options: dict[str, Any], cause: PrefixChangeCause
) -> None:
    ctx = talk(model(), on_change=seen)
    ctx.ask(Send(messages=[LONG]))

    ctx.ask(said(**options))

    (event,) = seen.wait_for(events.PromptPrefixChanged)
    assert event.cause is cause
    assert event.tokens > 1_000
    assert event.version_before == event.version_after
    assert (last(ctx).cause, last(ctx).predicted) == (cause, 0)


@pytest.mark.parametrize(
    "options",
    [{"scratch": "It is 12:00."}, {"max_tokens": 9}, {"temperature": 0.1}, {"stop": "x"}],
)
def test_what_stands_behind_the_messages_breaks_nothing(
    talk: Talk, options: dict[str, Any]
) -> None:
    ctx = talk(model())
    ctx.ask(Send(messages=[LONG]))

    ctx.ask(said(**options))
    ctx.ask(said())

    assert ctx.ask(CacheReport()).broken == 0


def test_the_order_of_a_schema_counts(talk: Talk) -> None:
    ctx = talk(model())

    def tool(*names: str) -> Tool:
        properties = {name: {"type": "string"} for name in names}
        return Tool(name="f", parameters={"type": "object", "properties": properties})

    ctx.ask(said(tools=[tool("a", "b")]))
    ctx.ask(said(tools=[tool("a", "b")]))
    assert last(ctx).cause is None
    ctx.ask(said(tools=[tool("b", "a")]))

    assert last(ctx).cause is PrefixChangeCause.TOOLS


def test_an_edit_is_announced_with_its_place(talk: Talk, seen: Seen) -> None:
    ctx = talk(model(), immutable=[Message.system("Be terse.")], on_change=seen)
    ctx.ask(Send(messages=[LONG]))
    ctx.ask(said())
    ctx.ask(Update(2, Message.user("And then?")))

    ctx.ask(said())

    (event,) = seen.wait_for(events.PromptPrefixChanged)
    assert (event.cause, event.at) == (PrefixChangeCause.EDIT, 3)
    assert event.tokens == last(ctx).before - last(ctx).shared
    assert last(ctx).predicted == last(ctx).shared > 1_000


def test_an_edit_of_what_no_request_held_breaks_nothing(talk: Talk) -> None:
    ctx = talk(model())
    ctx.ask(said())
    ctx.ask(Rewind(1))
    ctx.ask(Append(Message.assistant("Somebody else's answer.")))

    ctx.ask(said())

    assert last(ctx).cause is None


def test_a_compression_that_was_asked_for_is_the_cause(talk: Talk, seen: Seen) -> None:
    call = Message.assistant(tool_calls=[ToolCall(id="c", name="f")])
    ctx = talk(model(), on_change=seen)
    ctx.ask(Extend([LONG, call, Message.tool("c", "long " * 500), call, Message.tool("c", "x")]))
    ctx.ask(said())
    ctx.ask(Compress(EvictToolResults(1)))

    ctx.ask(said())

    (event,) = seen.wait_for(events.PromptPrefixChanged)
    assert (event.cause, event.at) == (PrefixChangeCause.COMPRESSION, 1)


def test_a_compression_of_the_turn_itself_is_the_cause(talk: Talk, seen: Seen) -> None:
    ctx = talk(
        model(),
        compression=default_strategy(keep=1),
        options=SendOptions(context_window=1_000, max_tokens=100),
        on_change=seen,
    )
    ctx.ask(Extend([Message.user("It rains again. " * 20) for _ in range(9)]))
    ctx.ask(said())

    ctx.ask(said("It rains. " * 60))

    (event,) = seen.wait_for(events.PromptPrefixChanged)
    assert event.cause is PrefixChangeCause.COMPRESSION
    assert seen.names.index("Compressed") < seen.names.index("PromptPrefixChanged")


def test_a_turn_that_failed_is_not_compared_with(talk: Talk) -> None:
    refused = BackendError("no", kind=ErrorKind.AUTH)
    ctx = talk(model([*cached_by([0]), refused]))
    ctx.ask(Send(messages=[LONG]))
    with pytest.raises(BackendError):
        ctx.ask(said("never answered", effort="high"))

    ctx.ask(said())

    report = ctx.ask(CacheReport())
    assert (report.turns, report.broken) == (2, 0)


def test_a_turn_that_was_cut_short_and_kept_is_compared_with(talk: Talk, seen: Seen) -> None:
    hold = Hold()
    ctx = talk(model([[TextDelta("Well, "), hold]]), on_change=seen)
    stream = ctx.ask(SendStream(messages=[LONG]))
    wait_for(hold.entered)
    ctx.ask(Cancel())
    with pytest.raises(TurnCancelled):
        list(stream)

    ctx.ask(said())

    assert last(ctx).cause is None
    assert last(ctx).shared > 1_000


def test_a_turn_that_stored_nothing_is_not_missed(talk: Talk) -> None:
    ctx = talk(model())
    ctx.ask(said("once", commit="manual"))

    ctx.ask(said("twice"))

    assert ctx.ask(CacheReport()).broken == 0


def test_what_a_turn_would_find_now_is_foretold(talk: Talk) -> None:
    ctx = talk(model(cached_by([0])))
    ctx.ask(Send(messages=[LONG]))

    held = ctx.ask(CacheReport()).next
    broken = ctx.ask(CacheReport(SendOptions(effort="high"))).next

    assert held is not None
    assert broken is not None
    assert (held.cause, held.predicted, held.cached) == (None, 2_500, None)
    assert (broken.cause, broken.predicted) == (PrefixChangeCause.EFFORT, 0)
    assert ctx.ask(CacheReport()).broken == 0


def test_a_fork_begins_its_own_ledger(talk: Talk) -> None:
    ctx = talk(model())
    ctx.ask(said())

    fork = ctx.ask(Fork())

    assert fork.ask(CacheReport()).turns == 0
    assert ctx.ask(CacheReport()).turns == 1


def test_a_backend_says_itself_what_its_cache_looks_at(talk: Talk) -> None:
    class Mine(ScriptedBackend):
        def prefix_fields(self, request: Request) -> dict[str, object]:
            return {"model": request.options.model}

    ctx = talk(Mine([lambda _: "Yes."] * 3))
    ctx.ask(said())
    ctx.ask(said(effort="high"))
    assert last(ctx).cause is None
    ctx.ask(said(model="other"))

    assert last(ctx).cause is PrefixChangeCause.MODEL
