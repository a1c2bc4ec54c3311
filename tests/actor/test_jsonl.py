"""A conversation goes out as lines and comes back the same."""

from __future__ import annotations

import json

import pytest

from agent_context import (
    Append,
    Compress,
    Extend,
    FromJsonl,
    Incremental,
    Message,
    Messages,
    Summarize,
    ToJsonl,
    ToolCall,
)
from agent_context.errors import ImportFailed, InvalidOptions
from agent_context.messages import ImagePart
from agent_context.protocol import Compressed, Immutable, Len, Zone
from tests.actor.conftest import Talk

SYSTEM = Message.system("You are terse.")
CHAT = """{"role": "system", "content": "Be kind."}
{"role": "user", "content": "What time is it?"}
{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", \
"function": {"name": "clock", "arguments": "{\\"zone\\": \\"UTC\\"}"}}]}
{"role": "tool", "tool_call_id": "c1", "content": "12:00"}
{"role": "assistant", "content": "Noon.", "annotations": [{"seen": true}]}
"""


def test_what_goes_out_comes_back_byte_for_byte(talk: Talk) -> None:
    ctx = talk(["Nothing much."], immutable=[SYSTEM])
    ctx.ask(Extend([Message.user("word " * 50) for _ in range(4)]))
    ctx.ask(Compress(Summarize(keep=1)))
    ctx.ask(
        Extend(
            [
                Message.user(["Look:", ImagePart(url="https://example.org/a.png", detail="low")]),
                Message.assistant(
                    "Let me see.", tool_calls=[ToolCall(id="c", name="f", arguments='{"a":')]
                ),
                Message.tool("c", "über \u2028 \x7f 🎉"),
                Message.model_validate({"role": "assistant", "content": "", "odd": {"x": [1, 2]}}),
            ]
        )
    )

    text = ctx.ask(ToJsonl())
    copy = talk()
    count = copy.ask(FromJsonl(text))

    assert copy.ask(ToJsonl()) == text
    assert copy.ask(Messages()) == ctx.ask(Messages())
    assert copy.ask(Immutable()) == (SYSTEM,)
    assert copy.ask(Compressed()) == ctx.ask(Compressed())
    assert count == ctx.ask(Len())


def test_lines_in_chat_completions_form_are_read_too(talk: Talk) -> None:
    ctx = talk()

    count = ctx.ask(FromJsonl(CHAT))

    assert count == 5
    assert [message.text for message in ctx.ask(Immutable())] == ["Be kind."]
    asked, answered, said = ctx.ask(Incremental())[1:]
    assert asked.tool_calls == (ToolCall(id="c1", name="clock", arguments='{"zone": "UTC"}'),)
    assert answered.tool_call_id == "c1"
    assert said.extra == {"annotations": [{"seen": True}]}


def test_an_export_may_hold_some_zones_only(talk: Talk) -> None:
    ctx = talk(immutable=[SYSTEM])
    ctx.ask(Append(Message.user("a")))

    lines = ctx.ask(ToJsonl([Zone.INCREMENTAL])).splitlines()

    assert [json.loads(line).get("zone") for line in lines] == [None, "incremental"]
    with pytest.raises(InvalidOptions, match="immutable"):
        ctx.ask(ToJsonl(["everything"]))  # type: ignore[list-item]


def test_the_immutable_zone_of_a_live_conversation_stays(talk: Talk) -> None:
    ctx = talk(immutable=[SYSTEM])
    ctx.ask(Append(Message.user("a")))
    other = talk(immutable=[Message.system("Be someone else.")])
    other.ask(Append(Message.user("b")))

    assert ctx.ask(FromJsonl(other.ask(ToJsonl()))) == 1

    assert [message.text for message in ctx.ask(Messages())] == ["You are terse.", "b"]


def test_append_adds_to_what_is_there(talk: Talk) -> None:
    ctx = talk(immutable=[SYSTEM])
    ctx.ask(Append(Message.user("a")))
    text = ctx.ask(ToJsonl([Zone.INCREMENTAL]))

    ctx.ask(FromJsonl(text, mode="append"))

    first, again = ctx.ask(Incremental())
    assert first.text == again.text
    assert first.id != again.id


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[]", "an object is expected"),
        ('{"content": "x"}', "role"),
        ('{"role": "nobody", "content": "x"}', "role"),
        ('{"role": "user", "content": 7}', "content"),
        ('{"role": "tool", "content": "x"}', "tool_call_id"),
        ('{"role": "user", "content": "x", "zone": "attic"}', "attic"),
        ('{"role": "user", "content": "x", "id": "one"}', "used by an earlier line"),
        ('{"agent_context": 1}', "first line only"),
        ('{"agent_context": 99}', "99"),
        ('{"role": "user", "content": "\\ud83d"}', "not JSON"),
        ('{"role": "user", "content": [{"no": "type"}]}', "type"),
        ('{"role": "user", "content": "x", "tool_calls": {"id": "c"}}', "tool_calls"),
        ('{"role": "user", "content": "x"', "not JSON"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_changes(
    talk: Talk, line: str, why: str
) -> None:
    ctx = talk()
    ctx.ask(Append(Message.user("before")))
    good = '{"id": "one", "role": "user", "content": "a"}'

    with pytest.raises(ImportFailed, match=why) as raised:
        ctx.ask(FromJsonl(f"{good}\n\n{line}\n"))

    assert raised.value.line == 3
    assert [message.text for message in ctx.ask(Messages())] == ["before"]


def test_something_else_than_text_is_refused(talk: Talk) -> None:
    ctx = talk()

    with pytest.raises(ImportFailed, match="not bytes"):
        ctx.ask(FromJsonl(b"{}"))  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match="mode"):
        ctx.ask(FromJsonl("", mode="merge"))  # type: ignore[arg-type]


def test_an_empty_text_is_an_empty_conversation(talk: Talk) -> None:
    ctx = talk()
    ctx.ask(Append(Message.user("a")))

    assert ctx.ask(FromJsonl("")) == 0
    assert ctx.ask(Len()) == 0
