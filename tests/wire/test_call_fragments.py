"""Whatever a server calls its fragments, each call is one, and no other is made of it."""

from typing import Any

import pytest

from agent_context.messages import ToolCall
from agent_context.stream_events import StreamAccumulator
from agent_context.wire.call_fragments import CallAssembler
from agent_context.wire.chat import ChunkReader, parse_completion


def fragment(
    index: int | None = None, id: str | None = None, name: str | None = None, args: Any = None
) -> dict[str, Any]:
    function = {k: v for k, v in {"name": name, "arguments": args}.items() if v is not None}
    fields = {"index": index, "id": id, "function": function}
    return {k: v for k, v in fields.items() if v is not None}


def assembled(*fragments: dict[str, Any]) -> tuple[ToolCall, ...]:
    reader = CallAssembler()
    events = [event for each in fragments if (event := reader.add(each)) is not None]
    return StreamAccumulator.from_events(events).to_message().tool_calls


def said(calls: tuple[ToolCall, ...]) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls]


ONE = [("f", '{"path": "a"}')]
TWO = [("f", '{"a": 1}'), ("f", '{"a": 2}')]


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [fragment(0, "A", "f", ""), fragment(0, "B", args='{"path": "a"}')],
            ONE,
            id="another id",
        ),
        pytest.param(
            [fragment(None, "A", "f", ""), fragment(None, "B", args='{"path": "a"}')],
            ONE,
            id="another id, no index",
        ),
        pytest.param(
            [fragment(0, "A", "f", ""), fragment(1, "B", args='{"path": "a"}')],
            ONE,
            id="another id and index",
        ),
        pytest.param(
            [fragment(0, "A", "f", ""), fragment(1, args='{"path":'), fragment(2, args=' "a"}')],
            ONE,
            id="another index",
        ),
        pytest.param(
            [
                fragment(0, "A", "f", '{"path"'),
                fragment(0, "B", "f", ': "a"'),
                fragment(0, "C", args="}"),
            ],
            ONE,
            id="another id each time",
        ),
        pytest.param(
            [
                fragment(0, "A", "f", ""),
                fragment(0, "B", args=""),
                fragment(0, "B", args='{"path": "a"}'),
            ],
            ONE,
            id="another id, empty first",
        ),
        pytest.param(
            [fragment(0, "A", "f", '{"path": "a"}'), fragment(1, "A", "f", '{"path": "a"}')],
            ONE,
            id="under two indexes",
        ),
        pytest.param(
            [
                fragment(0, "A", "f", ""),
                fragment(0, args='{"path": "a"}'),
                fragment(1, "A", "f", ""),
                fragment(1, args='{"path"'),
                fragment(1, args=': "a"}'),
            ],
            ONE,
            id="under two indexes, in pieces",
        ),
        pytest.param(
            [fragment(0, "A", "f", ""), fragment(1, "A", "f", '{"path": "a"}')],
            ONE,
            id="opened under one index, written under another",
        ),
        pytest.param([fragment(0, "A", "f", '{"path": "a"}')] * 2, ONE, id="sent twice"),
        pytest.param(
            [fragment(0, None, "f", '{"a": 1}'), fragment(0, None, "f", '{"a": 2}')],
            TWO,
            id="two, both number 0",
        ),
        pytest.param(
            [fragment(0, "A", "f", '{"a": 1}'), fragment(1, "A", "f", '{"a": 2}')],
            TWO,
            id="two under one id",
        ),
        pytest.param(
            [
                fragment(0, "A", "f", ""),
                fragment(0, args='{"a": 1}'),
                fragment(0, "A", "f", ""),
                fragment(0, args='{"a": 2}'),
            ],
            TWO,
            id="two under one id and index, in pieces",
        ),
        pytest.param(
            [
                fragment(0, "A", "f", ""),
                fragment(1, "A", "g", ""),
                fragment(0, args="{}"),
                fragment(1, args="{}"),
            ],
            [("f", "{}"), ("g", "{}")],
            id="two names under one id",
        ),
        pytest.param(
            [fragment(None, None, "f", ""), fragment(None, None, "g", '{"x": 1}')],
            [("f", ""), ("g", '{"x": 1}')],
            id="neither index nor id, the first without arguments",
        ),
        pytest.param([fragment(0, "A", None, '{"a": 1}')], [], id="without a name"),
        pytest.param(
            [fragment(0, "A", "f", "{}"), fragment(0, "B", None, '{"x": 1}')],
            [("f", "{}")],
            id="a whole one, and more without a name",
        ),
        pytest.param(
            [fragment(0, "A", None, '{"a":'), fragment(0, None, "f", " 1}")],
            [("f", '{"a": 1}')],
            id="its name comes after its arguments",
        ),
    ],
)
def test_fragments_become_the_calls_that_were_meant(
    fragments: list[dict[str, Any]], expected: list[tuple[str, str]]
) -> None:
    calls = assembled(*fragments)

    assert said(calls) == expected
    assert len({call.id for call in calls}) == len(calls)


@pytest.mark.parametrize("ids", [("A", "A"), (None, None), ("A", None), ("", "")])
@pytest.mark.parametrize("arguments", [('{"a": 1}', '{"a": 2}'), ("{}", "{}"), ("", "{}")])
@pytest.mark.parametrize("index", [None, 0])
def test_a_whole_answer_has_as_many_calls_as_it_lists(
    index: int | None, arguments: tuple[str, str], ids: tuple[str | None, str | None]
) -> None:
    listed = [fragment(index, one, "f", args) for one, args in zip(ids, arguments, strict=True)]
    answer = {"choices": [{"message": {"tool_calls": listed}, "finish_reason": "tool_calls"}]}

    calls = parse_completion(answer, vendor="any").message.tool_calls

    assert said(calls) == [("f", text) for text in arguments]
    assert len({call.id for call in calls}) == 2


def test_fields_of_a_call_that_nobody_knows_are_kept() -> None:
    first = {**fragment(0, "A", "f", ""), "extra_content": {"google": {"thought_signature": "s"}}}
    signed = {"arguments": "{}", "signature": "t"}
    second = {"index": 0, "function": signed, "provider": None}

    [call] = assembled(first, second)

    assert call.model_extra == {
        "extra_content": {"google": {"thought_signature": "s"}},
        "function": {"signature": "t"},
    }


def test_an_answer_of_calls_without_names_is_an_error() -> None:
    reader = ChunkReader("any")
    reader.feed({"choices": [{"delta": {"tool_calls": [fragment(0, "A", None, "{}")]}}]})

    assert reader.empty
