import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent_context import AgentContext, FromJsonl, Messages, ToJsonl
from agent_context._context.stored_message import from_message
from agent_context.errors import ImportFailed
from agent_context.imports import ImportResult, read_jsonl, recover_jsonl
from agent_context.imports.jsonl import jsonl_pieces
from agent_context.imports.result import collect
from agent_context.messages import Message
from agent_context_backends.scripted import ScriptedBackend
from tests.histories import messages

RESPONSES_PARTS = (b'"input_text"', b'"input_image"', b'"output_text"')
any_message = messages.filter(
    # Those are read as the parts of chat completions that they mean.
    lambda message: not any(part in from_message(message).body for part in RESPONSES_PARTS)
)

USER, ANSWER = '{"role":"user","content":"hi"}', '{"role":"assistant","content":"hello"}'


def read(*lines: str | bytes) -> ImportResult:
    """The lines, each with the end that it is given."""
    text = b"".join(line.encode() if isinstance(line, str) else line for line in lines)
    return collect(jsonl_pieces(text.splitlines(keepends=True)))


def texts(imported: ImportResult) -> list[list[str]]:
    return [[message.text for message in each.messages] for each in imported.conversations]


def test_messages_of_a_line_each_are_one_conversation() -> None:
    assert texts(read(USER, "\n", ANSWER, "\n")) == [["hi", "hello"]]


def test_lines_that_hold_messages_are_conversations_of_their_own() -> None:
    line = json.dumps(
        {"messages": [json.loads(USER)], "id": "c1", "title": "T", "created": 1700000000}
    )

    [first, second] = read(line, "\n", line, "\n").conversations

    assert (first.id, first.title) == ("c1", "T")
    assert first.created is not None
    assert first.created.year == 2023
    assert [message.text for message in second.messages] == ["hi"]


def test_a_bom_blank_lines_and_windows_line_ends_are_no_fault() -> None:
    imported = read(b"\xef\xbb\xbf", USER, "\r\n", "\r\n", "  \n", ANSWER)

    assert texts(imported) == [["hi", "hello"]]
    assert imported.quarantined == ()


def test_a_broken_line_is_reported_and_the_rest_is_read() -> None:
    imported = read(USER, "\n", "{oops\n", "[1]\n", '{"role":"x"}\n', '{"a":1}\n', ANSWER, "\n")

    assert texts(imported) == [["hi", "hello"]]
    assert [(piece.where, piece.raw) for piece in imported.quarantined] == [
        ("line 2", b"{oops"),
        ("line 3", b"[1]"),
        ("line 4", b'{"role":"x"}'),
        ("line 5", b'{"a":1}'),
    ]
    assert "an object is expected, not list" in imported.quarantined[1].why


def test_a_torn_tail_is_reported() -> None:
    imported = read(USER, "\n", ANSWER[:20])

    assert texts(imported) == [["hi"]]
    assert imported.quarantined[0].raw == ANSWER[:20].encode()


def test_the_record_behind_a_torn_one_is_found() -> None:
    imported = read(USER[:27], ANSWER, "\n", USER, "\n")

    assert texts(imported) == [["hello", "hi"]]
    assert [piece.raw for piece in imported.quarantined] == [USER[:27].encode()]


def test_a_part_of_a_torn_record_is_not_taken_for_a_record() -> None:
    torn = '{"messages":[' + USER

    imported = read(torn, "\n", torn + "," + ANSWER, "\n")

    assert imported.conversations == ()
    assert len(imported.quarantined) == 2


def test_padding_is_reported_and_what_is_behind_it_is_read() -> None:
    imported = read(USER, "\n", b"\0" * 4000, ANSWER, "\n", b"\0" * 96)

    assert texts(imported) == [["hi", "hello"]]
    assert [len(piece.raw) for piece in imported.quarantined] == [4000, 96]


def test_a_line_that_is_no_unicode_is_read_and_reported() -> None:
    imported = read(
        b'{"role":"user","content":"\xe9t\xe9"}\n', '{"role":"user","content":"\\ud83d"}'
    )

    assert texts(imported) == [["\ufffdt\ufffd", "\ufffd"]]
    assert [piece.why.startswith("taken") for piece in imported.quarantined] == [True, True]


def test_a_message_of_a_conversation_that_is_none_is_left_out_alone() -> None:
    line = f'{{"messages":[{USER},{{"role":"tool"}},7,{ANSWER}]}}'

    imported = read(line, "\n", '{"messages":{}}')

    assert texts(imported) == [["hi", "hello"]]
    wheres = [piece.where for piece in imported.quarantined]
    assert wheres == ["line 1, message 1", "line 1, message 2", "line 2"]


def test_an_id_that_is_used_twice_is_given_once() -> None:
    line = '{"id":"a","role":"user","content":"hi"}\n'

    [conversation] = read(line, line).conversations

    first, second = conversation.messages
    assert first.id == "a" != second.id


def test_a_newer_format_is_refused_with_its_line() -> None:
    with pytest.raises(ImportFailed, match=r"line 1: format 2 is not known"):
        read('{"agent_context":2}\n')


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match=r"none\.jsonl: No such file"):
        read_jsonl(tmp_path / "none.jsonl")


def test_a_file_is_read_as_it_lies(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text(USER + "\n" + ANSWER)

    assert texts(read_jsonl(tmp_path / "chat.jsonl")) == [["hi", "hello"]]


@given(st.lists(any_message, max_size=5), st.data())
def test_a_cut_never_costs_more_than_the_line_that_it_is_in(
    said: list[Message], data: st.DataObject
) -> None:
    lines = [from_message(message).to_json_line() + b"\n" for message in said]
    whole = b"".join(lines)
    cut = data.draw(st.integers(0, len(whole)))

    imported = read(whole[:cut], b"" if whole[:cut].endswith(b"\n") else b"\n", *lines)

    ends = [sum(map(len, lines[: n + 1])) for n in range(len(lines))]
    kept = sum(end - 1 <= cut for end in ends)
    found = [message for each in imported.conversations for message in each.messages]
    assert [_plain(message) for message in found] == [_plain(one) for one in said[:kept] + said]


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(text: bytes) -> None:
    read(text)


@given(st.integers(2, 60), any_message)
def test_what_is_appended_to_a_torn_line_is_found(cut: int, message: Message) -> None:
    torn = '{"id":"1","role":"user","content":"a \u00e9 line that was cut off'.encode()[:cut]
    assume(torn.rstrip()[-1:] not in b"[,:")  # there it may be a part of the torn one

    [found] = read(torn, from_message(message).to_json_line()).conversations

    assert _plain(found.messages[-1]) == _plain(message)


def _plain(message: Message) -> Any:
    return from_message(message).body


async def test_a_broken_export_is_taken_by_a_conversation_once_it_is_salvaged() -> None:
    conversation = AgentContext.start(ScriptedBackend([]))
    await conversation.aask(FromJsonl(USER + "\n" + ANSWER))
    exported = await conversation.aask(ToJsonl())
    broken = exported.encode().replace(b'"role":"user"', b'"role":"us\0', 1) + b'{"id":"x'

    text, quarantined = recover_jsonl(broken)
    other = AgentContext.start(ScriptedBackend([]))

    assert await other.aask(FromJsonl(text)) == 1
    assert [message.text for message in await other.aask(Messages())] == ["hello"]
    assert [piece.where for piece in quarantined] == ["line 2", "line 4"]
    assert recover_jsonl(exported.encode()) == (exported, ())
