"""What other programs write in the form of chat completions, and nearly so."""

import json
from typing import Any

import pytest

from agent_context.errors import InvalidMessage
from agent_context.imports.chat_form import ChatReader
from agent_context.imports.jsonl import jsonl_pieces
from agent_context.imports.result import ImportResult, collect
from agent_context.messages import FinishReason, Message, Role


def read(*lines: dict[str, Any]) -> ImportResult:
    return collect(jsonl_pieces([json.dumps(line).encode() for line in lines]))


def messages(*lines: dict[str, Any]) -> tuple[Message, ...]:
    imported = read(*lines)
    assert imported.quarantined == ()
    return tuple(imported.conversations[0].messages)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("human", Role.USER),
        ("Human", Role.USER),
        ("USER", Role.USER),
        ("ai", Role.ASSISTANT),
        ("gpt", Role.ASSISTANT),
        ("model", Role.ASSISTANT),
        ("developer", Role.SYSTEM),
    ],
)
def test_speakers_are_known_by_other_names(role: str, expected: Role) -> None:
    [message] = messages({"role": role, "content": "hi"})

    assert (message.role, message.text) == (expected, "hi")


def test_an_id_may_be_a_number_or_missing() -> None:
    first, second, third = messages(
        {"id": 7, "role": "user", "content": "a"},
        {"id": None, "role": "user", "content": "b"},
        {"id": "", "role": "user", "content": "c"},
    )

    assert first.id == "7"
    assert second.id != third.id != ""


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("end_turn", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("something new", FinishReason.OTHER),
        (3, FinishReason.OTHER),
        (None, None),
    ],
)
def test_a_reason_to_stop_may_have_another_word(word: Any, expected: FinishReason | None) -> None:
    [message] = messages({"role": "assistant", "content": "a", "finish_reason": word})

    assert message.finish_reason is expected


@pytest.mark.parametrize(
    "reasoning",
    [
        {"content": "hm"},
        {"text": "hm"},
        {"summary": [{"type": "summary_text", "text": "hm"}]},
        [{"type": "reasoning.text", "text": "hm"}],
        ["hm"],
    ],
)
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_may_be_an_object(reasoning: Any, name: str) -> None:
    [message] = messages({"role": "assistant", "content": "a", name: reasoning})

    assert message.reasoning == "hm"


def test_reasoning_without_words_stays_beside_the_message() -> None:
    [message] = messages({"role": "assistant", "content": "a", "reasoning": {"effort": "low"}})

    assert message.reasoning is None
    assert message.extra == {"reasoning_details": {"effort": "low"}}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"x": 1}, '{"x":1}'), ([], "[]"), (None, "{}"), ("{", "{")],
)
def test_arguments_may_be_an_object(arguments: Any, expected: str) -> None:
    call = {"id": 5, "type": "function", "function": {"name": "f", "arguments": arguments}}
    asking, result = messages(
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": 5, "content": "r"},
    )

    assert [(each.id, each.arguments) for each in asking.tool_calls] == [("5", expected)]
    assert result.tool_call_id == "5"


def test_a_function_that_was_called_is_a_call_with_its_result() -> None:
    call = {"name": "f", "arguments": '{"x": 1}'}
    asking, result, again, other = messages(
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "f", "content": "s"},
    )

    assert asking.tool_calls[0].name == "f"
    assert result.tool_call_id == asking.tool_calls[0].id
    assert other.tool_call_id == again.tool_calls[0].id != asking.tool_calls[0].id


def test_results_without_an_id_answer_the_open_calls_in_order() -> None:
    calls = [{"id": name, "function": {"name": "f"}} for name in ("a", "b")]
    _, first, second = messages(
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
    )

    assert (first.tool_call_id, second.tool_call_id) == ("a", "b")


def test_parts_of_the_responses_api_are_read() -> None:
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "u"}]
    [message] = messages({"role": "user", "content": parts})

    assert message.text == "see"
    assert [part.kind for part in message.parts] == ["text", "image"]


@pytest.mark.parametrize(
    "line",
    [
        {"role": "robot", "content": "x"},
        {"role": 7, "content": "x"},
        {"content": "x"},
        {"role": "tool", "content": "x"},
        {"role": "user", "contents": "x"},
    ],
)
def test_what_is_no_message_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="not a message"):
        ChatReader().read(line)
