import json
from pathlib import Path
from typing import Any

from agent_context.imports import Format, ImportResult, detect, read
from agent_context.messages import Role

META = {"id": "0199", "timestamp": "2026-05-07T17:24:21.597Z", "instructions": None}
ITEMS: list[dict[str, Any]] = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "content": None,
        "encrypted_content": "gAAA",
    },
    {"type": "function_call", "name": "shell", "arguments": '{"cmd":"ls"}', "call_id": "c1"},
    {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
    {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin", "call_id": "c2"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": {"content": "ok"}},
    {"type": "ghost_snapshot", "ghost_commit": {}},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
]


def rollout(tmp_path: Path, *lines: dict[str, Any]) -> ImportResult:
    file = tmp_path / "rollout-2026.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert detect(file) is Format.CODEX
    return read(file)


def line(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": "2026-05-07T17:24:22Z", "type": kind, "payload": payload}


def test_a_rollout_is_a_conversation_with_its_calls(tmp_path: Path) -> None:
    imported = rollout(
        tmp_path,
        line("session_meta", META),
        line("turn_context", {"cwd": "/", "model": "gpt-5.2-codex"}),
        line("event_msg", {"type": "user_message", "message": "q"}),
        *(line("response_item", item) for item in ITEMS),
        line("compacted", {"message": "short"}),
    )

    assert imported.quarantined == ()
    [conversation] = imported.conversations
    assert conversation.id == "0199"
    assert [each.role for each in conversation.messages] == [
        Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT
    ]  # fmt: skip
    shell, patch = (each for each in conversation.messages if each.tool_calls)
    assert shell.reasoning == "hm"
    assert (shell.tool_calls[0].name, shell.tool_calls[0].arguments) == ("shell", '{"cmd":"ls"}')
    assert patch.tool_calls[0].arguments == '{"input":"*** Begin"}'
    assert conversation.messages[5].text == "ok"
    assert conversation.messages[-1].text == "done"
    assert conversation.messages[-1].origin is not None
    assert conversation.messages[-1].origin.model == "gpt-5.2-codex"
    assert conversation.times[-1] is not None


def test_the_older_form_has_the_items_on_the_lines(tmp_path: Path) -> None:
    imported = rollout(tmp_path, META, {"record_type": "state"}, *ITEMS)

    assert imported.quarantined == ()
    [conversation] = imported.conversations
    assert (conversation.id, len(conversation.messages)) == ("0199", 7)


def test_what_a_rollout_has_of_an_unknown_kind_is_reported(tmp_path: Path) -> None:
    odd = line("response_item", {"type": "hologram"})
    imported = rollout(tmp_path, line("session_meta", META), odd)

    [piece] = imported.quarantined
    assert piece.where == "line 2"
    assert "hologram" in piece.why
