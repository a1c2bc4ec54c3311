import sqlite3
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession

from agent_context._context.stored_message import from_message
from agent_context.errors import ImportFailed
from agent_context.imports.agents_sqlite import read_agents_sqlite
from agent_context.messages import ImagePart, Message, OpaquePart, Role
from agent_context.wire.rendering import render
from tests.histories import OPENAI_ITEMS, call_item, message_item, reasoning_item

USER: dict[str, Any] = {"role": "user", "content": "What is the weather?"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


async def kept(path: Path, *items: Any, session: str = "s1") -> Path:
    kept_in = SQLiteSession(session, path)
    await kept_in.add_items(list(items))
    kept_in.close()
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


async def messages(path: Path, *items: Any) -> tuple[Message, ...]:
    imported = read_agents_sqlite(await kept(path, *items))
    assert imported.quarantined == ()
    return tuple(imported.conversations[0].messages)


async def test_items_become_messages(path: Path) -> None:
    user, asking, result, answer = await messages(
        path, USER, call_item("c1"), OUTPUT, message_item("It is sunny.")
    )

    assert (user.role, user.text) == (Role.USER, "What is the weather?")
    assert [(call.id, call.name, call.arguments) for call in asking.tool_calls] == [
        ("c1", "f", '{"x": 1}')
    ]
    assert (result.role, result.tool_call_id, result.text) == (Role.TOOL, "c1", "sunny")
    assert (answer.role, answer.text) == (Role.ASSISTANT, "It is sunny.")


async def test_the_models_neighbouring_items_are_one_message_that_goes_back_as_it_came(
    path: Path,
) -> None:
    items = [reasoning_item("openai", "hm"), message_item("Let me see."), call_item("c1")]

    _, asking, _ = await messages(path, USER, *items, OUTPUT)

    assert (asking.reasoning, asking.text, len(asking.tool_calls)) == ("hm", "Let me see.", 1)
    sent = render(from_message(asking), OPENAI_ITEMS)
    assert b'"encrypted_content":"gAAA"' in sent
    assert b'"phase":"final_answer"' in sent


async def test_what_the_program_noted_on_an_item_says_which_model_wrote_it(path: Path) -> None:
    item = {**call_item("c1"), "provider_data": {"model": "gpt-5.2", "response_id": "r"}}

    [asking] = await messages(path, item)

    assert asking.origin is not None
    assert asking.origin.model == "gpt-5.2"
    assert b"provider_data" not in from_message(asking).body


async def test_parts_of_content_are_read(path: Path) -> None:
    content = [
        {"type": "input_text", "text": "see"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_image", "file_id": "file-1"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:"},
    ]
    answer = {"role": "assistant", "content": "plain"}

    user, said, system = await messages(
        path, {"role": "user", "content": content}, answer, {"role": "developer", "content": "be"}
    )

    assert user.text == "see[image file-1]"
    assert isinstance(user.parts[1], ImagePart)
    assert user.parts[1].detail == "low"
    assert isinstance(user.parts[3], OpaquePart)
    assert user.parts[3].data == {
        "type": "file",
        "file": {"filename": "a.pdf", "file_data": "data:"},
    }
    assert said.text == "plain"
    assert (system.role, system.text) == (Role.SYSTEM, "be")


async def test_each_session_of_a_file_is_a_conversation(path: Path) -> None:
    await kept(path, USER, session="b")
    await kept(path, USER, {"role": "user", "content": "again"}, session="a")

    first, second = read_agents_sqlite(path).conversations

    assert (first.id, second.id) == ("b", "a")
    assert [message.text for message in second.messages][-1] == "again"
    assert second.created is not None
    assert len(second.times) == 2
    assert second.times[0] is not None


async def test_what_cannot_be_read_is_reported_with_its_row(path: Path) -> None:
    shell = {"type": "local_shell_call_output", "id": "x", "output": ""}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    await kept(path, USER, shell, thought, {"role": "tool", "content": "x"})
    database = sqlite3.connect(path)
    insert = "INSERT INTO agent_messages (session_id, message_data) VALUES ('s1', ?)"
    database.executemany(insert, [("{oops",), ("[]",)])
    database.execute(insert.replace("?", "CAST(x'7b22ff' AS TEXT)"))
    database.execute(insert.replace("'s1', ?", "'gone', '{}'"))
    database.commit()
    database.close()

    imported = read_agents_sqlite(path)

    [conversation] = imported.conversations
    assert len(conversation.messages) == 1
    assert [piece.where for piece in imported.quarantined] == [
        *(f"session 's1', row {row}" for row in (5, 6, 7, 2, 3, 4)),
        "session 'gone', row 8",
    ]
    assert "local_shell_call_output" in imported.quarantined[3].why


async def test_a_file_is_read_while_it_is_written(path: Path) -> None:
    await kept(path, USER, session="live")
    ended = threading.Event()

    def write() -> None:
        database = sqlite3.connect(path, timeout=10)
        insert = "INSERT INTO agent_messages (session_id, message_data) VALUES ('live', ?)"
        while not ended.is_set():
            database.executemany(insert, [('{"role":"user","content":"x"}',)] * 2)
            database.commit()
        database.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = [len(read_agents_sqlite(path).conversations[0].messages) for _ in range(20)]
    finally:
        ended.set()
        writer.join()

    assert counts == sorted(counts)
    assert {count % 2 for count in counts} == {1}


def test_nothing_is_written(path: Path) -> None:
    anyio.run(kept, path, USER)
    before = path.read_bytes()

    read_agents_sqlite(path)

    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "unable to open"), (b"text", "not a database"), (b"", "no such table")],
)
def test_another_file_is_refused(path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        path.write_bytes(content if len(content) == 0 else content * 1000)

    with pytest.raises(ImportFailed, match=f"sessions of openai-agents are expected: .*{why}"):
        read_agents_sqlite(path)
    assert path.exists() == (content is not None)


async def test_tables_may_have_other_names(path: Path) -> None:
    session = SQLiteSession("s", path, sessions_table="se", messages_table="me")
    await session.add_items([{"role": "user", "content": "hi"}])
    session.close()

    imported = read_agents_sqlite(path, sessions_table="se", messages_table="me")

    assert len(imported.conversations) == 1


async def test_a_session_whose_id_is_no_utf8_is_read_too(path: Path) -> None:
    await kept(path, message_item("hello"), session="s1")
    with sqlite3.connect(path) as database:
        for table in ("agent_messages", "agent_sessions"):
            database.execute(f"UPDATE {table} SET session_id = CAST(x'61ff' AS TEXT)")
    database.close()
    (conversation,) = read_agents_sqlite(path).conversations
    assert len(conversation.messages) == 1


async def test_a_session_with_a_branch_is_one_conversation_with_another_ending(path: Path) -> None:
    session = AdvancedSQLiteSession(session_id="s1", db_path=path, create_tables=True)

    async def add(question: str, answer: str) -> None:
        items: list[Any] = [{"role": "user", "content": question}, message_item(answer)]
        await session.add_items(items)

    await add("q1", "a1")
    await add("q2", "a2")
    await session.create_branch_from_turn(2)
    await add("other", "a3")
    session.close()

    [conversation] = read_agents_sqlite(path).conversations

    assert [each.text for each in conversation.messages] == ["q1", "a1", "other", "a3"]
    [older] = conversation.branches
    assert [each.text for each in older] == ["q1", "a1", "q2", "a2"]
    assert len(conversation.times) == 4


async def test_items_of_other_programs_are_read_as_what_they_mean(path: Path) -> None:
    asked, called, result, answer, old, thought = await messages(
        path,
        {"role": "human", "content": "q", "id": 7},
        {**call_item("c1"), "id": None, "arguments": {"x": 1}},
        {**OUTPUT, "id": 3, "output": {"content": "sunny"}},
        {**message_item("It is."), "id": None, "finish_reason": "because"},
        {"role": "user", "content": "again"},
        {"type": "reasoning", "id": 4, "summary": {"text": "hm"}},
    )

    assert (asked.role, asked.text) == (Role.USER, "q")
    assert called.tool_calls[0].arguments == '{"x":1}'
    assert (result.tool_call_id, result.text) == ("c1", "sunny")
    assert (answer.text, answer.finish_reason) == ("It is.", "other")
    assert old.text == "again"
    assert thought.reasoning == "hm"


async def test_answers_in_chat_completions_form_keep_their_calls(path: Path) -> None:
    call = {"id": "c9", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    _, asking, result = await messages(
        path,
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c9", "content": "sunny"},
    )

    assert [(each.id, each.arguments) for each in asking.tool_calls] == [("c9", '{"x":1}')]
    assert result.tool_call_id == "c9"
