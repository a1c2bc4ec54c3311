import json
from itertools import count
from pathlib import Path
from typing import Any

from agent_context.imports import Format, ImportResult, detect, read
from agent_context.messages import Message
from tests.imports.test_exports import shown

TEXT = {"type": "text", "text": "Let me see."}


def use(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Read", "input": {"path": name}}


def result(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": f"of {name}"}


def line(name: str, parent: str | None, speaker: str, *content: Any, **more: Any) -> dict[str, Any]:
    said = content[0] if len(content) == 1 and isinstance(content[0], str) else list(content)
    message = {"role": speaker, "content": said, "model": "claude-opus-4-8"}
    fields = {"uuid": name, "parentUuid": parent, "isSidechain": False, "sessionId": "s1"}
    return {
        **fields, "type": speaker, "message": message, "timestamp": "2026-05-07T17:24:22Z", **more
    }  # fmt: skip


def session(tmp_path: Path, *lines: dict[str, Any]) -> ImportResult:
    file = tmp_path / f"{next(_numbers)}.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert detect(file) is Format.CLAUDE_CODE
    return read(file)


_numbers = count()


def test_a_session_is_a_conversation_with_thoughts_calls_and_results(tmp_path: Path) -> None:
    imported = session(
        tmp_path,
        {"type": "summary", "summary": "A title", "leafUuid": "6"},
        {"type": "file-history-snapshot", "messageId": "1"},
        line("1", None, "user", "q"),
        line("2", "1", "assistant", {"type": "thinking", "thinking": "hm"}),
        line("3", "2", "assistant", TEXT),
        line("4", "3", "assistant", use("a")),
        line("5", "4", "user", result("a"), toolUseResult={"file": {}}),
        line("6", "5", "assistant", {"type": "text", "text": "done"}),
    )

    assert imported.quarantined == ()
    [conversation] = imported.conversations
    assert (conversation.id, conversation.title) == ("s1", "A title")
    assert shown(conversation.messages) == ["u q", "a Let me see. Read", "t of a", "a done"]
    asking = conversation.messages[1]
    assert asking.reasoning == "hm"
    assert asking.origin is not None
    assert asking.origin.model == "claude-opus-4-8"
    assert len(conversation.times) == 4


def test_calls_side_by_side_are_no_branches(tmp_path: Path) -> None:
    [conversation] = session(
        tmp_path,
        line("1", None, "user", "q"),
        line("2", "1", "assistant", use("a")),
        line("3", "2", "assistant", use("b")),
        line("4", "2", "user", result("a")),
        line("5", "3", "user", result("b")),
        line("6", "5", "assistant", {"type": "text", "text": "done"}),
        line("7", "6", "user", "more"),
    ).conversations

    assert shown(conversation.messages) == [
        "u q", "a Read Read", "t of a", "t of b", "a done", "u more"
    ]  # fmt: skip
    assert conversation.branches == ()


def test_a_session_that_was_rewound_has_another_ending(tmp_path: Path) -> None:
    [conversation] = session(
        tmp_path,
        line("1", None, "user", "q"),
        line("2", "1", "assistant", {"type": "text", "text": "a"}),
        line("3", "2", "user", "old"),
        line("4", "3", "assistant", {"type": "text", "text": "b"}),
        line("5", "2", "user", "new"),
    ).conversations

    assert shown(conversation.messages) == ["u q", "a a", "u new"]
    assert [shown(each) for each in conversation.branches] == [["u q", "a a", "u old", "a b"]]


def test_what_was_compacted_is_still_there(tmp_path: Path) -> None:
    [conversation] = session(
        tmp_path,
        line("1", None, "user", "q"),
        {"type": "system", "uuid": "2", "parentUuid": None, "logicalParentUuid": "1"},
        line("3", "2", "user", "short", isCompactSummary=True),
    ).conversations

    assert shown(conversation.messages) == ["u q", "u short"]


def test_a_side_chain_is_a_conversation_by_itself(tmp_path: Path) -> None:
    main, aside = session(
        tmp_path,
        line("1", None, "user", "q"),
        line("2", None, "user", "task", isSidechain=True),
        line("3", "2", "assistant", {"type": "text", "text": "found"}, isSidechain=True),
        line("4", "1", "assistant", {"type": "text", "text": "done"}),
    ).conversations

    assert shown(main.messages) == ["u q", "a done"]
    assert shown(aside.messages) == ["u task", "a found"]
    assert aside.id == "s1/2"


def test_an_error_that_was_shown_is_reported_and_not_said(tmp_path: Path) -> None:
    imported = session(
        tmp_path,
        line("1", None, "user", "q"),
        line("2", "1", "assistant", "API Error", isApiErrorMessage=True),
        line("3", "2", "user", "again"),
    )

    said: tuple[Message, ...] = tuple(imported.conversations[0].messages)
    assert shown(said) == ["u q", "u again"]
    assert [piece.where for piece in imported.quarantined] == ["line 2"]
