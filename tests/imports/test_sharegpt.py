import json
from pathlib import Path
from typing import Any

import pytest

from agent_context.errors import ImportFailed
from agent_context.imports import Format, detect, read
from tests.imports.test_exports import shown

TALK = {
    "id": "d1",
    "conversations": [
        {"from": "system", "value": "be"},
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "r"},
        {"from": "gpt", "value": "a"},
    ],
}
SHOWN = ["s be", "u q", "a f", "t r", "a a"]
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([TALK]),
        json.dumps([TALK], indent=2),
        json.dumps(TALK),
        json.dumps(TALK, indent=2),
        json.dumps(TALK) + "\n" + json.dumps(TALK),
        "\ufeff" + json.dumps([TALK]),
    ],
)
def test_conversations_are_read_from_json_and_from_lines(text: str, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(text, encoding="utf-8")

    assert detect(file) is Format.SHAREGPT
    imported = read(file)

    assert imported.quarantined == ()
    assert shown(imported.conversations[0].messages) == SHOWN
    asking, result = imported.conversations[0].messages[2:4]
    assert asking.tool_calls[0].arguments == '{"x":1}'
    assert result.tool_call_id == asking.tool_calls[0].id


@pytest.mark.parametrize(
    "value",
    [CHAT, [{"messages": CHAT}], {"messages": CHAT}, {"conversation": CHAT}, [{"items": CHAT}]],
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_of_messages_is_a_conversation(value: Any, indent: int, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(value, indent=indent))

    [conversation] = read(file).conversations

    assert shown(conversation.messages) == ["u q", "a a"]


def test_a_system_prompt_beside_the_talk_comes_first(tmp_path: Path) -> None:
    talk = {"system": "be", "conversations": [{"from": "user", "value": "q"}]}
    (tmp_path / "data.json").write_text(json.dumps([talk]))

    [conversation] = read(tmp_path / "data.json").conversations

    assert shown(conversation.messages) == ["s be", "u q"]


def test_what_nobody_known_says_is_reported_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    odd = {"conversations": [{"from": "alien", "value": "x"}, {"from": "human", "value": "q"}]}
    file.write_text(json.dumps([odd, {"a": 1}]))

    imported = read(file)

    assert shown(imported.conversations[0].messages) == ["u q"]
    assert [piece.where for piece in imported.quarantined] == [
        f"{file}, conversation 0, message 0",
        f"{file}, conversation 1",
    ]


def test_another_list_is_refused_with_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[{"instruction": "x"}]')

    with pytest.raises(ImportFailed, match="ShareGPT's form"):
        read(tmp_path / "x.json")
