"""The arguments of calls as they are sent: one JSON object, whatever the model wrote."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context.messages import Message, Origin, ToolCall
from agent_context.wire.arguments import is_object, to_object_text
from agent_context.wire.dialect import Dialect
from agent_context.wire.responses import parse_completion
from tests.histories import DIALECTS, ITEM_DIALECTS, call_item, reasoning_item
from tests.support.examples import examples
from tests.support.rendered import rendered

BROKEN = [
    '{"path": "a.txt',
    "",
    " \n",
    "null",
    '["x"]',
    "3",
    '"text"',
    '""',
    '{"a": 1}{"b": 2}',
    '{"a": "x\ny\x00"}',
    '{"a": NaN, "b": -Infinity}',
    '{"a": "\\ud83d"}',
    '{"a": 1e999}',
    '{"a": ' + "9" * 5_000 + "}",
    "[" * 5_000,
    '{"a":' * 5_000 + "1" + "}" * 5_000,
    '"{\\"a\\": 1}"',
    '\ufeff{"a": 1}',
    "{'a': 1}",
    "call f with a = 1",
]


@pytest.mark.parametrize("text", ["{}", '{"a": 1}', '{ "a" : [1, {"b": "ü"}] }\n'])
def test_a_json_object_is_sent_as_it_stands(text: str) -> None:
    assert to_object_text(text) is text


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("", {}),
        ("null", {}),
        ('{"path": "a.txt', {"invalid_arguments": '{"path": "a.txt'}),
        ('["x"]', {"invalid_arguments": '["x"]'}),
        ('{"a": 1}{"b": 2}', {"invalid_arguments": '{"a": 1}{"b": 2}'}),
        ('{"a": "x\ny"}', {"a": "x\ny"}),
        ('{"a": NaN}', {"a": "NaN"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
    ],
)
def test_what_is_sent_says_what_the_model_wrote(text: str, sent: object) -> None:
    assert json.loads(to_object_text(text)) == sent


@examples(5)
@given(
    st.one_of(st.text(), st.sampled_from(BROKEN), st.text('{}[]":,\\ na1').map(lambda t: "{" + t))
)
def test_any_text_becomes_one_object_and_then_stays(text: str) -> None:
    once = to_object_text(text)

    assert is_object(once)
    assert to_object_text(once) == once


@pytest.mark.parametrize("dialect", [*DIALECTS, *ITEM_DIALECTS], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_every_vendor_gets_an_object(text: str, dialect: Dialect) -> None:
    asked = Message.assistant(tool_calls=[ToolCall(id="a", name="f", arguments=text)])

    sent = rendered([Message.user("q"), asked, Message.tool("a", "no")], dialect)

    [call] = [
        found
        for one in sent
        for found in (*one.get("tool_calls", ()), one)
        if found.get("type") in {"function", "function_call"}
    ]
    assert is_object(call.get("function", call)["arguments"])


def test_items_keep_their_reasoning_when_their_arguments_are_mended() -> None:
    broken = {**call_item("a"), "arguments": '{"a": '}
    answer = {"status": "completed", "output": [reasoning_item("openai", "hm"), broken]}
    asked = parse_completion(answer, vendor="openai").message
    dialect = next(one for one in ITEM_DIALECTS if one.vendor == "openai")

    sent = rendered([Message.user("q"), asked, Message.tool("a", "no")], dialect)

    assert [one.get("type") for one in sent][1:3] == ["reasoning", "function_call"]
    assert json.loads(sent[2]["arguments"]) == {"invalid_arguments": '{"a":'}


def test_what_only_its_vendor_understands_of_a_call_goes_back_to_it_alone() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    inner = {"name": "f", "arguments": "{}", "thought_signature": "t"}
    call = {"id": "a", "type": "function", "function": inner, **signed}
    asked = Message.model_validate({"role": "assistant", "content": "", "tool_calls": [call]})
    asked = asked.model_copy(update={"origin": Origin(vendor="gemini")})
    history = [Message.user("q"), Message.from_dict(asked.to_dict()), Message.tool("a", "1")]

    back = rendered(history, Dialect(name="gemini", vendor="gemini"))
    other = rendered(history, Dialect(name="openai", vendor="openai"))

    assert back[1]["tool_calls"] == [call]
    plain = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert other[1]["tool_calls"] == [plain]
