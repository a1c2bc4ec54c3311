"""Whatever a history looks like, what is sent of it is legal."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context.errors import InvalidMessage
from agent_context.messages import Message, Role
from agent_context.wire.dialect import Dialect
from agent_context.wire.rendering import RequestRenderer
from agent_context.wire.repair import (
    CONTINUE,
    NO_RESULT,
    STRICTEST_DIALECT,
    RepairKind,
    repair_history,
    repair_with_notes,
)
from tests.histories import (
    DEEPSEEK,
    DIALECTS,
    ITEM_DIALECTS,
    OPENAI,
    ZHIPU,
    asking,
    histories,
    result,
    said,
    user,
    zones_of,
)
from tests.support.examples import examples
from tests.wire.rules import Wire, deepseek_refuses, faults, record_faults

TIGHT = Dialect(name="tight", vendor="", max_call_id=9, needs_user=True, merge_same_role=True)
DATA = Path(__file__).parents[1] / "data" / "deepseek_validator.jsonl"
CASES = [json.loads(line) for line in DATA.read_text().splitlines()]
NO_MESSAGES = {"unknown role", "missing tool_call_id"}


def sent(records: list[StoredMessage], dialect: Dialect = DEEPSEEK) -> Wire:
    messages: Wire = json.loads(RequestRenderer().body({}, zones_of(records), (), dialect))[
        "messages"
    ]
    return messages


def contents(records: list[StoredMessage]) -> list[Any]:
    return [record.fields()["content"] for record in records]


@pytest.mark.parametrize(
    "rules",
    [*DIALECTS, *ITEM_DIALECTS, STRICTEST_DIALECT, TIGHT],
    ids=lambda rules: str(rules.name),
)
@examples(2)
@given(records=histories)
def test_any_history_becomes_legal_and_then_stays_as_it_is(
    records: list[StoredMessage], rules: Dialect
) -> None:
    once = repair_history(records, rules)

    assert record_faults(once, rules) == []
    assert repair_history(once, rules) == once


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))
@examples(2)
@given(records=histories)
def test_what_goes_over_the_wire_is_legal(records: list[StoredMessage], dialect: Dialect) -> None:
    assert faults(sent(records, dialect), dialect) == []


@examples(3)
@given(histories)
def test_deepseek_accepts_any_history(records: list[StoredMessage]) -> None:
    pytest.importorskip("deepseek_recipe")

    assert deepseek_refuses(sent(records)) is None


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_what_the_validator_was_asked_becomes_legal(case: dict[str, Any]) -> None:
    raw = case["body"]["messages"]
    if case["name"] in NO_MESSAGES:
        with pytest.raises(InvalidMessage):
            list(map(Message.model_validate, raw))
        return

    messages = sent([from_message(Message.model_validate(message)) for message in raw])

    assert faults(messages, DEEPSEEK) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_deepseek_accepts_the_repaired_form(case: dict[str, Any]) -> None:
    pytest.importorskip("deepseek_recipe")
    if case["name"] in NO_MESSAGES:
        return

    records = [from_message(Message.model_validate(raw)) for raw in case["body"]["messages"]]

    assert deepseek_refuses(sent(records)) is None


@examples(2)
@given(histories)
def test_a_change_is_always_explained(records: list[StoredMessage]) -> None:
    found = repair_with_notes(records, DEEPSEEK)

    assert (found.records == records) == (found.notes == [])
    assert found.sources == sorted(found.sources)
    assert [note.index for note in found.notes] == sorted(note.index for note in found.notes)


def test_a_legal_history_is_passed_on_as_the_same_objects() -> None:
    records = [user(), asking("a", "b"), result("a"), result("b"), said(), user()]

    assert all(one is other for one, other in zip(repair_history(records), records, strict=True))


def test_results_are_moved_to_their_call_in_its_order() -> None:
    call, one, two = asking("a", "b"), result("a"), result("b")
    first, second = user("1"), user("2")

    assert repair_history([first, call, two, second, one]) == [first, call, one, two, second]


def test_a_result_belongs_to_the_nearest_earlier_call() -> None:
    early, late, answer = asking("a"), asking("a"), result("a")

    found = repair_history([user(), early, late, answer])

    assert contents(found)[2] == NO_RESULT
    assert found[3:] == [late, answer]


def test_a_missing_result_is_said_to_be_missing() -> None:
    [_, _, made, _] = repair_history([user(), asking("a"), user()])

    assert made.message.text == NO_RESULT
    assert (made.role, made.call_ids) == (Role.TOOL, ("a",))


def test_orphans_and_second_results_are_dropped() -> None:
    records = [user(), result("x"), asking("a"), result("a", "kept"), result("a", "again")]

    found = repair_with_notes(records)

    assert contents(found.records) == ["hi", "", "kept"]
    assert [(note.index, note.what) for note in found.notes] == [
        (1, RepairKind.DROPPED),
        (4, RepairKind.DROPPED),
    ]


def test_an_interim_result_makes_way_for_the_next() -> None:
    early, later = result("a", "queued", interim=True), result("a", "half", interim=True)
    final = result("a", "done")

    assert contents(repair_history([user(), asking("a"), early]))[2:] == ["queued"]
    assert contents(repair_history([user(), asking("a"), early, later]))[2:] == ["half"]
    found = repair_with_notes([user(), asking("a"), early, said("soon"), final, later])
    assert contents(found.records)[2:] == ["done", "soon"]
    assert [note.index for note in found.notes if note.what is RepairKind.DROPPED] == [2, 5]


def test_equal_ids_are_told_apart_together_with_their_results() -> None:
    records = [user(), asking("a", "a", ""), result("a", "1"), result("", "3"), result("a", "2")]

    found = repair_history(records)

    assert contents(found)[2:] == ["1", "2", "3"]
    assert found[1].call_ids[0] == "a"
    assert len(set(found[1].call_ids)) == 3


def test_a_long_id_is_shortened_the_same_way_each_time() -> None:
    records = [user(), asking("x" * 99), result("x" * 99)]

    one, other = repair_history(records, OPENAI), repair_history(records, OPENAI)

    assert one[1].call_ids == one[2].call_ids == other[1].call_ids
    assert len(one[1].call_ids[0]) <= 40


def test_a_user_is_stood_in_at_the_end_only_where_one_is_needed() -> None:
    records = [said("summary")]

    assert contents(repair_history(records, ZHIPU)) == ["summary", CONTINUE]
    assert repair_history(records, DEEPSEEK) == records
    assert contents(repair_history([], DEEPSEEK)) == [CONTINUE]


def test_neighbours_are_merged_where_they_must_be() -> None:
    records = [user("1"), user("2"), said("3"), user(" "), said("4")]

    found = repair_with_notes(records, ZHIPU)

    assert contents(found.records) == ["1\n\n2", "3\n\n4"]
    assert [note.index for note in found.notes if note.what is RepairKind.MERGED] == [1, 4]


def test_repair_is_linear() -> None:
    records = [asking(*map(str, range(2_000))), *(result(str(i)) for i in range(1_999, -1, -1))]
    records += [result("nowhere")] * 20_000

    assert len(repair_history(records, DEEPSEEK)) == 2_001
