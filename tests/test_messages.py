"""Messages as programs write them: what is no message is refused with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

from agent_context import Message
from agent_context.errors import InvalidMessage
from tests.agent.conftest import agent_of

WORDLESS: list[dict[str, Any]] = [
    {"role": "user", "contents": ["hi"]},
    {"role": "user", "text": "hi"},
    {"role": "user", "content": None, "text": "hi"},
    {"role": "system", "message": "hi"},
    {"role": "developer", "prompt": "hi"},
    {"role": "tool", "tool_call_id": "c", "result": "hi"},
    {"role": {"type": "role", "value": "user"}, "contents": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "contents": [{"type": "text", "text": "hi"}]},
    {
        "type": "message",
        "role": "user",
        "contents": [{"type": "text", "text": "hi"}],
        "author_name": None,
        "message_id": "m1",
        "additional_properties": {},
    },
]


@pytest.mark.parametrize("fields", WORDLESS)
def test_a_message_whose_words_would_be_lost_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match=r"no field of a message: write content="):
        Message(**fields)
    with pytest.raises(InvalidMessage, match=r"no field of a message: write content="):
        Message.from_dict(fields)


async def test_so_it_is_in_a_run() -> None:
    agent = agent_of(["hello"])

    with pytest.raises(InvalidMessage, match="contents is no field"):
        await agent.run({"role": "user", "contents": ["hi"]})


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "user"},
        {"role": "user", "content": ""},
        {"role": "user", "content": "", "text": "of a vendor"},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "audio": {"id": "a"}},
        {"role": "user", "name": "ann"},
        {"role": "assistant", "content": "hi", "text": "of a vendor"},
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "f"}], "value": 1},
    ],
)
def test_a_message_may_be_empty_and_hold_unknown_fields(fields: dict[str, Any]) -> None:
    message = Message.from_dict(fields)

    assert Message.from_dict(message.to_dict()) == message
