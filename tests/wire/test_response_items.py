"""Messages as items of the Responses API: legal whatever the history, and what came goes back."""

import json
from typing import Any

import pytest
from hypothesis import given

from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.tokens import count_message
from agent_context.messages import ImagePart, Message, OpaquePart, Origin, ToolCall
from agent_context.models import ModelFacts
from agent_context.wire.dialect import Dialect
from agent_context.wire.rendering import RequestRenderer, render
from tests.histories import (
    DEEPSEEK,
    DEEPSEEK_ITEMS,
    ITEM_DIALECTS,
    OPENAI,
    OPENAI_ITEMS,
    ZHIPU_ITEMS,
    answered,
    asking,
    call_item,
    histories,
    message_item,
    reasoning_item,
    result,
    said,
    user,
    zones_of,
)
from tests.support.examples import examples
from tests.wire.rules import Wire, deepseek_refuses_items, item_faults

by_name = pytest.mark.parametrize("dialect", ITEM_DIALECTS, ids=lambda each: str(each.name))


def sent(records: list[StoredMessage], dialect: Dialect = OPENAI_ITEMS) -> Wire:
    items: Wire = json.loads(RequestRenderer().body({}, zones_of(records), (), dialect))["input"]
    return items


def items_of(message: Message, dialect: Dialect = OPENAI_ITEMS) -> Wire:
    items: Wire = json.loads(b"[" + render(from_message(message), dialect) + b"]")
    return items


@by_name
@examples(3)
@given(records=histories)
def test_what_goes_over_the_wire_is_legal(records: list[StoredMessage], dialect: Dialect) -> None:
    assert item_faults(sent(records, dialect), dialect) == []


@examples(4)
@given(histories)
def test_deepseek_accepts_any_history(records: list[StoredMessage]) -> None:
    pytest.importorskip("deepseek_recipe")

    assert deepseek_refuses_items(sent(records, DEEPSEEK_ITEMS)) is None


def output(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "done"}


ASKS = {"role": "user", "content": "q"}
SAYS = {"role": "assistant", "content": "a"}
THOUGHT = reasoning_item("deepseek", "hm")
SEALED = reasoning_item("openai", "hm")


@pytest.mark.parametrize(
    ("items", "dialect", "fault"),
    [
        ([], OPENAI_ITEMS, "no item"),
        ([ASKS, call_item("a")], OPENAI_ITEMS, "No tool output"),
        ([ASKS, call_item("a"), ASKS, output("a")], OPENAI_ITEMS, "No tool output"),
        ([ASKS, output("a")], OPENAI_ITEMS, "no open call"),
        ([ASKS, call_item("a"), output("a"), output("a")], OPENAI_ITEMS, "no open call"),
        ([call_item("a"), output("a")] * 2, OPENAI_ITEMS, "one id"),
        ([call_item(""), output("")], OPENAI_ITEMS, "no id"),
        ([call_item("x" * 65), output("x" * 65)], OPENAI_ITEMS, "no id"),
        ([ASKS, SEALED], OPENAI_ITEMS, "nothing follows"),
        ([SEALED, ASKS, SAYS], OPENAI_ITEMS, "nothing follows"),
        ([THOUGHT, SAYS], OPENAI_ITEMS, "nobody can read"),
        ([SAYS], ZHIPU_ITEMS, "no user"),
        ([ASKS, call_item("a"), output("a")], DEEPSEEK_ITEMS, "passed back"),
        ([SAYS, THOUGHT, call_item("a"), output("a")], DEEPSEEK_ITEMS, "passed back"),
        (
            [THOUGHT, call_item("a"), SAYS, call_item("b"), output("a"), output("b")],
            DEEPSEEK_ITEMS,
            "No tool output found for tool call a.",
        ),
    ],
)
def test_the_rules_notice(items: Wire, dialect: Dialect, fault: str) -> None:
    assert any(fault in found for found in item_faults(items, dialect))


@pytest.mark.parametrize(
    ("items", "dialect"),
    [
        ([ASKS, SEALED, call_item("a"), output("a"), SEALED, SAYS, ASKS], OPENAI_ITEMS),
        (
            [ASKS, SEALED, call_item("a"), SAYS, call_item("b"), output("b"), output("a")],
            OPENAI_ITEMS,
        ),
        ([ASKS, THOUGHT, call_item("a"), call_item("b"), output("a"), output("b")], DEEPSEEK_ITEMS),
        ([SAYS], DEEPSEEK_ITEMS),
    ],
)
def test_the_rules_allow(items: Wire, dialect: Dialect) -> None:
    assert item_faults(items, dialect) == []
    if dialect is DEEPSEEK_ITEMS:
        pytest.importorskip("deepseek_recipe")
        assert deepseek_refuses_items(items) is None


def test_a_plain_message_is_the_stored_bytes() -> None:
    for record in (user(), said()):
        assert render(record, OPENAI_ITEMS) is record.body


def test_instructions_stay_where_they_are() -> None:
    records = [user("q"), from_message(Message.system("be brief")), user("r")]

    assert [item["role"] for item in sent(records)] == ["user", "developer", "user"]
    assert [item["role"] for item in sent(records, DEEPSEEK_ITEMS)] == ["user", "system", "user"]


def test_a_tool_loop_becomes_calls_and_their_outputs() -> None:
    assert sent([user("q"), asking("a", "b"), result("b"), result("a")]) == [
        ASKS,
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": '{"x": 1}'},
        output("a"),
        output("b"),
    ]


@by_name
def test_names_that_no_api_takes_are_made_legal_there_too(dialect: Dialect) -> None:
    call = ToolCall(id="a", name="files.read it!", arguments="{}")

    items = items_of(Message.assistant(tool_calls=[call]), dialect)

    (name,) = [item["name"] for item in items if item.get("type") == "function_call"]
    assert name == "files_read_it_"


def test_an_id_that_comes_again_in_a_later_turn_is_another_one_there() -> None:
    items = sent([asking("a"), result("a"), user(), asking("a"), result("a", "two")])

    names = [item["call_id"] for item in items if "call_id" in item]
    assert names[:2] == ["a", "a"]
    assert names[2] == names[3] != "a"
    assert items[-1]["output"] == "two"


def test_text_and_images_become_input_parts() -> None:
    image = ImagePart(url="data:image/png;base64,AA==", width=3, height=4)
    file = OpaquePart(data={"type": "file", "file": {"file_id": "f1"}})
    message = Message.user(["look", image, file])

    assert items_of(message)[0]["content"] == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_file", "file_id": "f1"},
    ]
    _, blind, attached = items_of(message, ZHIPU_ITEMS)[0]["content"]
    assert blind["text"] == "[image left out: it can't be sent to this model]"
    assert attached == {"type": "input_file", "file_id": "f1"}


ITEMS = [
    reasoning_item("openai", "hm"),
    message_item("let me see", "commentary"),
    reasoning_item("openai", "so"),
    call_item("a"),
]


def test_items_of_its_own_go_back_unchanged_and_in_place() -> None:
    assert items_of(answered("openai", ITEMS)) == ITEMS


@pytest.mark.parametrize("dialect", [DEEPSEEK_ITEMS, ZHIPU_ITEMS])
def test_items_of_another_vendor_stay_here(dialect: Dialect) -> None:
    items = items_of(answered("openai", ITEMS), dialect)

    assert "gAAA" not in json.dumps(items)
    assert "hm" not in json.dumps(items)
    assert items[-2:] == [
        {"role": "assistant", "content": "let me see"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"x": 1}'},
    ]


def test_chat_completions_never_see_items() -> None:
    for vendor, dialect in (("openai", OPENAI), ("deepseek", DEEPSEEK)):
        assert b"output_items" not in render(from_message(answered(vendor, ITEMS)), dialect)


@pytest.mark.parametrize(
    "edit",
    [
        {"parts": ()},
        {"reasoning": None},
        {"reasoning": "other"},
        {"tool_calls": ()},
        {"tool_calls": (ToolCall(id="a", name="f", arguments="{}"),)},
    ],
)
def test_an_edited_message_is_written_anew(edit: dict[str, Any]) -> None:
    message = answered("openai", ITEMS).model_copy(update=edit)

    assert not any("id" in item for item in items_of(message))


def test_a_renamed_call_is_renamed_in_its_item() -> None:
    message = answered("openai", [reasoning_item("openai", "hm"), call_item("x" * 70)])

    items = sent([user(), from_message(message), result("x" * 70)])

    assert items[1] == reasoning_item("openai", "hm")
    assert items[2]["id"] == "fc_1"
    assert items[2]["call_id"] == items[3]["call_id"] != "x" * 70


def test_reasoning_that_nobody_could_read_is_left_out_with_all_ids() -> None:
    stored_there = reasoning_item("openai", "hm", sealed=False)

    items = items_of(answered("openai", [stored_there, message_item("hi")]))

    assert items == [{"role": "assistant", "content": "hi"}]


def test_deepseek_gets_its_calls_together_and_its_reasoning_first() -> None:
    items = [THOUGHT, call_item("a"), message_item("so"), call_item("b")]

    kinds = [item["type"] for item in items_of(answered("deepseek", items), DEEPSEEK_ITEMS)]

    assert kinds == ["reasoning", "message", "function_call", "function_call"]


def test_reasoning_from_chat_completions_goes_to_the_same_vendor_as_an_item() -> None:
    message = Message.assistant("hi", reasoning="hm").model_copy(
        update={"origin": Origin(vendor="deepseek")}
    )

    assert items_of(message, DEEPSEEK_ITEMS)[0]["content"] == [
        {"type": "reasoning_text", "text": "hm"}
    ]
    assert len(items_of(message, OPENAI_ITEMS)) == 1


def test_neighbours_that_are_merged_are_written_anew() -> None:
    one = answered("deepseek", [reasoning_item("deepseek", "x"), message_item("one")])
    two = answered("deepseek", [reasoning_item("deepseek", "y"), message_item("two")])

    items = sent([user("q"), from_message(one), from_message(two)], DEEPSEEK_ITEMS)

    assert items[1]["content"] == [{"type": "reasoning_text", "text": "x\n\ny"}]
    assert items[2] == {"role": "assistant", "content": "one\n\ntwo"}


def test_items_cost_no_tokens() -> None:
    facts = ModelFacts(context_window=1000, max_output=100)
    message = answered("openai", [{**ITEMS[0], "encrypted_content": "x" * 9_000}, *ITEMS[1:]])

    bare = Message.model_validate(
        {name: value for name, value in message.model_dump().items() if name != "output_items"}
    )

    assert count_message(message, facts) == count_message(bare, facts)


def test_items_survive_the_stored_form() -> None:
    record = from_message(answered("openai", ITEMS))

    assert record.message.extra["output_items"] == ITEMS
    assert from_message(record.message).body == record.body
