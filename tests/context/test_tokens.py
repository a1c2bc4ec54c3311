"""Counting is exact where it can be, says so where it can't, and never fails."""

import gzip
import importlib.util
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context._actor.model_client import ModelClient
from agent_context._context import tokens
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import from_message
from agent_context._context.token_breakdown import TokenBreakdown, TokenCalibration
from agent_context._context.tokens import (
    TokenCountCache,
    count_message,
    count_overhead,
    counter,
)
from agent_context._context.tool_tokens import count_tools
from agent_context._context.zones import Zones
from agent_context.messages import ImagePart, Message, OpaquePart, ToolCall
from agent_context.models import ModelFacts, TemplateOverhead
from agent_context.options import SendOptions
from agent_context.tools import Tool
from agent_context_backends.scripted import ScriptedBackend
from tests.histories import user, zones_of
from tests.support.examples import examples

FACTS = ModelFacts(context_window=1000, max_output=100, message_overhead=4)
RAW = TokenBreakdown(
    immutable=10,
    compressed=20,
    incremental=30,
    scratch=4,
    tools=5,
    overhead=3,
    reserve=100,
    window=1000,
)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No vocabulary is loaded, and splintr is not installed."""
    monkeypatch.setattr(tokens, "_counters", {})
    monkeypatch.setitem(sys.modules, "splintr", None)


@pytest.mark.parametrize(
    ("vocabulary", "text", "expected"),
    [
        ("o200k_base", "", 0),
        ("o200k_base", "hello world", 2),
        ("o200k_base", "antidisestablishmentarianism", 6),
        ("o200k_base", "人工智能正在改变世界", 5),
        ("cl100k_base", "tiktoken is great!", 6),
        ("cl100k_base", "antidisestablishmentarianism", 6),
        ("cl100k_base", "お誕生日おめでとう", 9),
        ("cl100k_base", "2 + 2 = 4", 7),
    ],
)
def test_known_texts_have_their_known_counts(vocabulary: str, text: str, expected: int) -> None:
    assert counter(vocabulary).count(text) == expected
    assert counter(vocabulary).exact


def test_special_tokens_in_a_text_are_text() -> None:
    assert counter("o200k_base").count("<|endoftext|>") > 1


@pytest.mark.parametrize("vocabulary", ["o200k_base", "nobody's"])
@pytest.mark.parametrize("text", [" ", "\t", "\u3000", "a", "=", "\n", "中", "😀", "\ud83d"])
def test_a_million_of_anything_can_be_counted(vocabulary: str, text: str) -> None:
    assert counter(vocabulary).count(text * 1_000_000) > 0


@examples(2)
@given(st.text(st.characters(), max_size=50))
def test_any_text_can_be_counted(text: str) -> None:
    assert counter("o200k_base").count(text) >= bool(text)
    assert counter("nobody's").count(text) >= 0


@pytest.mark.usefixtures("fresh")
def test_an_unknown_vocabulary_is_estimated_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = [counter("nobody's"), counter("nobody's")]

    assert [(each.exact, each.name) for each in found] == [(False, "nobody's by estimate")] * 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize("vocabulary", ["deepseek_v3", "glm4"])
@pytest.mark.usefixtures("fresh")
def test_without_splintr_o200k_counts_with_a_margin(vocabulary: str) -> None:
    text = "a sentence of some length " * 20

    found = counter(vocabulary)

    assert (found.name, found.exact) == (f"{vocabulary} by o200k_base", False)
    assert found.count(text) == pytest.approx(1.1 * counter("o200k_base").count(text), abs=1)


@pytest.mark.usefixtures("fresh")
def test_with_splintr_its_vocabulary_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    one_a_letter = SimpleNamespace(encode_ordinary=list)
    tokenizer = SimpleNamespace(from_pretrained=lambda _: one_a_letter)
    monkeypatch.setitem(sys.modules, "splintr", SimpleNamespace(Tokenizer=tokenizer))

    found = counter("deepseek_v3")

    assert (found.name, found.exact, found.count("four")) == ("deepseek_v3", True, 4)


@pytest.mark.usefixtures("fresh")
def test_a_corrupt_vocabulary_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gzip, "decompress", lambda _: b"aGk= 0")

    found = counter("o200k_base")

    assert not found.exact
    assert found.count("hello world") > 0
    assert "has the hash" in caplog.text


@pytest.mark.usefixtures("fresh")
def test_a_missing_package_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    assert counter("o200k_base").name == "o200k_base by estimate"


@pytest.mark.usefixtures("fresh")
def test_threads_load_a_vocabulary_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(counter, ["cl100k_base"] * 8))

    assert all(each is found[0] for each in found)


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over the lazy dog, and nobody minds much. " * 20,
        "def add(one: int, two: int) -> int:\n    return one + two\n" * 20,
        '{"name": "value", "numbers": [1, 22, 333], "nested": {"x": null}}' * 20,
        "人工智能正在改变世界，我们每天都在使用它。" * 20,
        "Съешь ещё этих мягких французских булок, да выпей чаю. " * 20,
    ],
)
def test_the_estimate_is_near_the_truth(text: str) -> None:
    truth = counter("o200k_base").count(text)

    assert 0.85 * truth <= counter("nobody's").count(text) <= 2 * truth


def test_a_message_costs_all_that_goes_out_of_it() -> None:
    count = counter("o200k_base").count
    call = ToolCall(id="a", name="find", arguments='{"city": "Oslo"}')
    message = Message.assistant("on it", tool_calls=[call], reasoning="a long thought " * 50)

    cost = count_message(message, FACTS)

    assert cost >= 4 + count("on it") + count("find") + count(call.arguments)
    assert cost < 50


def test_reasoning_costs_where_it_is_sent() -> None:
    message = Message.assistant("hi", reasoning="well " * 100)
    sends = ModelFacts(context_window=1000, max_output=100, sends_reasoning=True)

    assert count_message(message, sends) >= count_message(message, FACTS) + 100


def test_the_margin_is_rounded_up() -> None:
    wary = ModelFacts(context_window=1000, max_output=100, margin=1.1)

    assert count_message(Message.user("hello world"), FACTS) == 6
    assert count_message(Message.user("hello world"), wary) == 7


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (ImagePart(url="data:image/png;base64," + "A" * 500_000), 765),
        (ImagePart(url="https://x/y.png", width=512, height=512), 255),
        (ImagePart(url="https://x/y.png", width=2048, height=4096), 1105),
        (ImagePart(url="https://x/y.png", width=2048, height=4096, detail="low"), 85),
    ],
)
def test_an_image_costs_by_its_size(image: ImagePart, expected: int) -> None:
    assert count_message(Message.user([image]), FACTS) == 4 + expected


def test_data_is_not_text_and_text_in_unknown_parts_is() -> None:
    blob = {"type": "input_audio", "input_audio": {"data": "QUJD" * 10_000, "format": "wav"}}
    note = {"type": "note", "items": [{"text": "word " * 100}]}

    assert count_message(Message.user([OpaquePart(data=blob)]), FACTS) < 12
    assert count_message(Message.user([OpaquePart(data=note)]), FACTS) > 100


def test_encrypted_fields_cost_nothing() -> None:
    sealed = Message.model_validate({"role": "user", "content": "x", "encrypted": "QUJD" * 10_000})

    assert count_message(sealed, FACTS) == count_message(Message.user("x"), FACTS)


def test_tools_cost_the_json_that_goes_out() -> None:
    tool = Tool(name="find", description="Find a city. " * 20)

    assert count_tools([], FACTS) == 0
    assert 60 < count_tools([tool], FACTS) < 130
    assert count_tools([tool, tool], FACTS) > 1.9 * count_tools([tool], FACTS)


SPELLED = replace(
    FACTS,
    overhead=TemplateOverhead(
        request=2, system=0, user=1, assistant=3, tool=8, reasoning=1, calls=10, call=5, argument=7,
        tools=100, tool_syntax="spaced_json", thinking=20, efforts={"max": 30},
    ),
)  # fmt: skip


def test_a_known_template_says_what_is_added_to_each_message() -> None:
    call = ToolCall(id="1", name="f", arguments='{"a": "x", "b": 3}')

    assert count_message(Message.system("x"), SPELLED) == 1
    assert count_message(Message.user("x"), SPELLED) == 2
    assert count_message(Message.tool("1", "x"), SPELLED) == 9
    assert count_message(Message.assistant(tool_calls=[call]), SPELLED) == 3 + 10 + 6 + 2 * 9
    assert count_tools([Tool(name="f")], SPELLED) > 100


@pytest.mark.parametrize("arguments", ["", "{", "[1]"])
def test_arguments_that_are_none_are_counted_as_text(arguments: str) -> None:
    message = Message.assistant(tool_calls=[ToolCall(id="1", name="f", arguments=arguments)])

    text = counter(FACTS.vocabulary).count(arguments)
    assert count_message(message, SPELLED) == 3 + 10 + 5 + 1 + text


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({}, 22), ({"thinking": False}, 2), ({"effort": "none"}, 2), ({"effort": "max"}, 32)],
)
def test_thinking_has_its_own_line(options: dict[str, Any], tokens: int) -> None:
    assert count_overhead(replace(SPELLED, thinks=True), SendOptions(**options)) == tokens


def test_reasoning_costs_nothing_where_it_is_left_out() -> None:
    class Thinking(ScriptedBackend):
        def model_facts(self, model: str | None) -> ModelFacts:
            return replace(FACTS, sends_reasoning=True, reasoning_needs_tools=True)

    client, thought = ModelClient(Thinking([]), "c"), Message.assistant("a", reasoning="b " * 50)
    zones = zones_of([from_message(thought)])

    silent = client.bind(SendOptions()).count_exactly(zones, ())
    with_tools = client.bind(SendOptions(tools=(Tool(name="f"),))).count_exactly(zones, ())

    assert silent.incremental < 10
    assert with_tools.incremental > 50


class Estimate:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, message: Message) -> int:
        self.asked += 1
        return len(message.text)


def test_each_message_is_estimated_once() -> None:
    estimate, records = Estimate(), [user("one"), user("three")]
    counts = TokenCountCache(estimate)

    totals = [counts.total(records), counts.total(iter(records)), counts.of(records[0])]

    assert totals == [8, 8, 3]
    assert estimate.asked == 2


@pytest.mark.parametrize("length", range(9))
def test_the_first_messages_are_counted_from_the_total_and_what_stands_behind(length: int) -> None:
    records = [user("x" * 2**number) for number in range(8)]
    immutable, compressed, rest = map(PersistentVector.of, (records[:2], records[2:5], records[5:]))
    zones = Zones(immutable, compressed, rest)
    estimate = Estimate()
    counts = TokenCountCache(estimate)

    assert counts.total_of_first(zones, length) == counts.total(records[:length])


def test_the_history_is_not_added_up_again_for_its_beginning() -> None:
    zones, estimate = zones_of([user("x" * number) for number in range(10)]), Estimate()
    counts = TokenCountCache(estimate)
    counts.total_of_first(zones, 8)
    counts.prune(iter(()))
    asked = estimate.asked

    assert counts.total_of_first(zones, 8) == sum(range(8))
    assert estimate.asked == asked + 2


def test_an_edit_leaves_no_stale_count() -> None:
    counts, zones = TokenCountCache(Estimate()), zones_of([user("one")])
    before = counts.total(zones)
    edited = from_message(Message.user("longer").model_copy(update={"id": zones.get(0).id}))

    assert (before, counts.total(zones.update(0, edited))) == (3, 6)


def test_what_is_gone_is_forgotten_once_it_is_the_most() -> None:
    counts, records = TokenCountCache(Estimate()), [user(str(number)) for number in range(10)]
    counts.total(records)

    counts.prune(records[:5])
    kept = len(counts)
    counts.prune(iter(records[:4]))

    assert (kept, len(counts)) == (10, 4)


def test_threads_may_count_and_prune_at_once() -> None:
    counts, records = TokenCountCache(Estimate()), [user("x" * number) for number in range(100)]

    def work(round_: int) -> int:
        counts.prune(records[round_ : round_ + 2])
        return counts.total(records)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(work, range(50))) == {4950}


def test_a_breakdown_adds_up() -> None:
    assert (RAW.total, RAW.free) == (72, 828)


def test_calibration_moves_half_way_to_what_was_reported() -> None:
    assert TokenCalibration().learn(100, 120) == TokenCalibration(1.1)
    assert TokenCalibration(1.5).learn(100, 100) == TokenCalibration(1.25)


@pytest.mark.parametrize(("estimated", "reported"), [(0, 5), (100, 0), (100, 49), (100, 301)])
def test_an_implausible_report_is_ignored(estimated: int, reported: int) -> None:
    assert TokenCalibration(1.2).learn(estimated, reported) == TokenCalibration(1.2)


@examples(2)
@given(st.lists(st.tuples(st.integers(-10, 1000), st.integers(-10, 1000))))
def test_calibration_stays_in_bounds(reports: list[tuple[int, int]]) -> None:
    calibration = TokenCalibration()

    for estimated, reported in reports:
        calibration = calibration.learn(estimated, reported)

    assert 0.75 <= calibration.factor <= 2.0


def test_calibrated_parts_add_up_and_the_window_stays() -> None:
    found = TokenCalibration(1.5).apply(RAW)

    assert (found.immutable, found.tools, found.overhead) == (15, 8, 5)
    assert found.total == 15 + 30 + 45 + 6 + 8 + 5
    assert (found.reserve, found.window) == (RAW.reserve, RAW.window)
    assert TokenCalibration().apply(RAW) is RAW
