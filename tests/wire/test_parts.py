"""Content of any origin goes out in the form that its reader takes."""

from dataclasses import replace
from typing import Any

import pytest

from agent_context.messages import Message
from agent_context.wire.dialect import Dialect
from tests.histories import DEEPSEEK, DIALECTS, ITEM_DIALECTS, OPENAI, OPENAI_ITEMS
from tests.support.rendered import rendered

URL = "https://example.org/x.png"
SEEN = {"type": "image_url", "image_url": {"url": URL}}
HI = {"type": "text", "text": "hi"}


def sent(content: Any, dialect: Dialect, role: str = "user") -> Any:
    fields = {"role": role, "content": content}
    return rendered([Message.model_validate(fields), Message.user("q")], dialect)[0]["content"]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: str(dialect.name))
def test_a_tool_s_result_is_one_text(dialect: Dialect) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "input_text", "text": "two"}, SEEN]
    result = {"role": "tool", "tool_call_id": "a", "content": parts}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    history = [{"role": "user", "content": "q"}, asked, result]

    messages = rendered(list(map(Message.model_validate, history)), dialect)

    assert messages[2]["content"] == (
        "one\n\ntwo\n\n[image left out: it can't be sent to this model]"
    )


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "input_text", "text": "a"}, {"type": "text", "text": "a"}),
        ({"type": "output_text", "text": "a", "annotations": []}, {"type": "text", "text": "a"}),
        ({"type": "refusal", "refusal": "a"}, {"type": "text", "text": "a"}),
        ({"type": "text", "text": 3}, {"type": "text", "text": "3"}),
        ({"type": "text", "text": {"value": "a"}}, {"type": "text", "text": "a"}),
        ({"type": "image_url", "image_url": URL}, SEEN),
        ({"type": "input_image", "image_url": URL}, SEEN),
        (
            {"type": "input_image", "image_url": URL, "detail": "low"},
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        ),
    ],
)
def test_parts_of_other_apis_are_those_of_chat_completions(
    part: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert sent([HI, part], OPENAI) == [HI, expected]


def test_parts_of_the_responses_api_stay_what_they_are_there() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": URL}, SEEN]

    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    assert sent(parts, OPENAI_ITEMS) == [parts[0], image, image]


@pytest.mark.parametrize("dialect", [OPENAI, OPENAI_ITEMS], ids=lambda dialect: str(dialect.name))
@pytest.mark.parametrize(
    "empty",
    [
        {"type": "text", "text": ""},
        {"type": "text", "text": " \n"},
        {"type": "text", "text": None},
        {"type": "text"},
        {"type": "input_text", "text": None},
    ],
)
def test_an_empty_text_is_left_out(empty: dict[str, Any], dialect: Dialect) -> None:
    assert len(sent([empty, SEEN, empty], dialect)) == 1
    assert rendered([Message.model_validate({"role": "user", "content": [empty]})], dialect) == (
        rendered([], dialect)
    )


@pytest.mark.parametrize("role", ["user", "system", "assistant"])
@pytest.mark.parametrize("dialect", [*DIALECTS, *ITEM_DIALECTS], ids=lambda each: str(each.name))
def test_marks_for_a_cache_go_to_those_who_know_them_alone(dialect: Dialect, role: str) -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    parts = [{**HI, **mark}, {**SEEN, **mark}]

    assert "cache_control" not in str(sent(parts, dialect, role))
    if dialect.api == "chat":
        knows = replace(dialect, part_fields=frozenset({"cache_control"}))
        assert sent(parts, knows, role)[0] == {**HI, **mark}


def test_texts_of_others_than_users_are_one_text() -> None:
    parts = [HI, {"type": "text", "text": "there"}]

    assert sent(parts, DEEPSEEK, "system") == "hi\n\nthere"
    assert sent(parts, DEEPSEEK, "assistant") == "hithere"
