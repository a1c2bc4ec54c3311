import json
import time
import zipfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context.errors import ImportFailed
from agent_context.imports import Format, ImportResult, detect, read
from agent_context.imports.branches import branches
from agent_context.imports.chatgpt import chatgpt_conversation
from agent_context.imports.claude import claude_conversation
from agent_context.imports.deepseek import deepseek_conversation
from agent_context.imports.export_archive import MAX_BYTES, read_export
from agent_context.imports.result import ImportedConversation, Rejected, collect
from agent_context.imports.transcript import MOST_BRANCHES
from agent_context.messages import FinishReason, Message


def shown(messages: Sequence[Message]) -> list[str]:
    """Each message in a word: who, what, which calls."""
    return [
        " ".join(filter(None, (each.role[0], each.text, *(call.name for call in each.tool_calls))))
        for each in messages
    ]


def gpt(
    *nodes: tuple[str, str | None, dict[str, Any] | None], current: str | None = None
) -> dict[str, Any]:
    mapping: dict[str, Any] = {
        name: {"id": name, "parent": parent, "children": [], "message": message}
        for name, parent, message in nodes
    }
    fields = {"title": "T", "create_time": 1704067200.5, "conversation_id": "c1"}
    return {**fields, "mapping": mapping, "current_node": current or nodes[-1][0]}


def gpt_said(role: str, *parts: Any, name: str | None = None, **more: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": list(parts)}
    author: dict[str, Any] = {"role": role, "name": name, "metadata": {}}
    fields = {"author": author, "content": content, "create_time": 1704067201, "recipient": "all"}
    return {**fields, "metadata": {}, "status": "finished_successfully", **more}


def chain(*messages: dict[str, Any] | None) -> dict[str, Any]:
    names: list[str | None] = [None, *map(str, range(len(messages)))]
    return gpt(*((str(n), names[n], message) for n, message in enumerate(messages)))


def of_gpt(*messages: dict[str, Any] | None) -> ImportedConversation:
    [conversation] = [
        piece
        for piece in chatgpt_conversation(chain(*messages))
        if isinstance(piece, ImportedConversation)
    ]
    return conversation


def test_the_branch_that_was_shown_last_is_read_and_the_others_are_there() -> None:
    exported = gpt(
        ("root", None, None),
        ("u", "root", gpt_said("user", "q")),
        ("a1", "u", gpt_said("assistant", "first")),
        ("a2", "u", gpt_said("assistant", "second")),
        ("u2", "a1", gpt_said("user", "more")),
        current="a2",
    )

    [conversation] = chatgpt_conversation(exported)

    assert isinstance(conversation, ImportedConversation)
    assert shown(conversation.messages) == ["u q", "a second"]
    assert [shown(branch) for branch in conversation.branches] == [["u q", "a first", "u more"]]
    assert (conversation.id, conversation.title) == ("c1", "T")
    assert conversation.created is not None
    assert conversation.created.isoformat() == "2024-01-01T00:00:00.500000+00:00"
    assert [time and time.second for time in conversation.times] == [1, 1]


def test_a_tool_that_was_called_by_its_name_is_a_call_with_its_result() -> None:
    code = {"content_type": "code", "text": "1+1"}
    output = {"content_type": "execution_output", "text": "2"}

    conversation = of_gpt(
        gpt_said("user", "q"),
        gpt_said("assistant", content=code, recipient="python"),
        gpt_said("tool", name="python", content=output),
        gpt_said("tool", "and 3", name="python"),
        gpt_said("assistant", "It is 2."),
    )

    assert shown(conversation.messages) == ["u q", "a python", "t 2\n\nand 3", "a It is 2."]
    _, asking, result, _ = conversation.messages
    assert json.loads(asking.tool_calls[0].arguments) == {"input": "1+1"}
    assert result.tool_call_id == asking.tool_calls[0].id


def test_a_result_that_nobody_called_for_gets_a_call() -> None:
    conversation = of_gpt(gpt_said("user", "q"), gpt_said("tool", "noted", name="bio"))

    assert shown(conversation.messages) == ["u q", "a bio", "t noted"]


def test_thoughts_belong_to_what_is_said_next() -> None:
    thoughts = {
        "content_type": "thoughts",
        "thoughts": [{"summary": "Sum", "content": "one"}, {"content": "two"}],
    }
    recap = {"content_type": "reasoning_recap", "content": "Thought for 5s"}

    conversation = of_gpt(
        gpt_said("assistant", content=thoughts),
        gpt_said("assistant", content=recap),
        gpt_said("assistant", "done", metadata={"model_slug": "o3"}),
    )

    [said] = conversation.messages
    assert said.reasoning == "Sum\none\n\ntwo"
    assert said.origin is not None
    assert (said.origin.vendor, said.origin.model) == ("openai", "o3")


def test_pictures_are_named_and_spoken_words_are_read() -> None:
    image = {"content_type": "image_asset_pointer", "asset_pointer": "sediment://f1"}
    spoken = {"content_type": "audio_transcription", "text": "hello"}

    conversation = of_gpt(gpt_said("user", image, "what is this?", spoken))

    assert shown(conversation.messages) == ["u [image sediment://f1]\nwhat is this?\nhello"]


def test_custom_instructions_are_a_system_message_and_empty_ones_are_none() -> None:
    context = {
        "content_type": "user_editable_context",
        "user_profile": "P",
        "user_instructions": "I",
    }
    old = {"user_context_message_data": {"about_user_message": "A", "about_model_message": "B"}}

    conversation = of_gpt(
        gpt_said("system", ""),
        gpt_said("user", content=context, metadata={"is_visually_hidden_from_conversation": True}),
        gpt_said("system", "", metadata={"is_user_system_message": True, **old}),
        gpt_said("user", "q"),
    )

    assert shown(conversation.messages) == ["s P\nI", "s A\nB", "u q"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"status": "in_progress"}, FinishReason.INTERRUPTED),
        ({"metadata": {"finish_details": {"type": "max_tokens"}}}, FinishReason.LENGTH),
        ({}, None),
    ],
)
def test_an_answer_that_was_cut_says_so(more: dict[str, Any], reason: FinishReason | None) -> None:
    [said] = of_gpt(gpt_said("assistant", "so", **more)).messages

    assert said.finish_reason is reason
    assert said.interrupted == (reason is FinishReason.INTERRUPTED)


def test_what_is_of_an_unknown_kind_is_reported() -> None:
    odd = gpt_said("assistant", content={"content_type": "hologram"})

    imported = collect(chatgpt_conversation(chain(gpt_said("alien", "x"), odd)))

    assert [piece.where for piece in imported.quarantined] == ["message 0", "message 1"]
    assert "'hologram' is not known" in imported.quarantined[1].why


def test_a_conversation_with_too_many_endings_reports_those_that_are_left_out() -> None:
    answers = [(f"a{n}", "u", gpt_said("assistant", f"{n}")) for n in range(MOST_BRANCHES + 3)]

    imported = collect(
        chatgpt_conversation(gpt(("u", None, gpt_said("user", "q")), *answers, current="a1"))
    )

    assert len(imported.conversations[0].branches) == MOST_BRANCHES
    assert len(imported.quarantined) == 2


def deepseek(*nodes: tuple[str, str | None, list[tuple[str, str]]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {"root": {"id": "root", "parent": None, "message": None}}
    for name, parent, fragments in nodes:
        message = {
            "files": [],
            "model": "deepseek-reasoner",
            "inserted_at": "2026-03-08T10:00:00.000000+08:00",
            "fragments": [{"type": kind, "content": text} for kind, text in fragments],
        }
        mapping[name] = {"id": name, "parent": parent, "children": [], "message": message}
    return {
        "id": "d1",
        "title": "T",
        "inserted_at": "2026-03-08T10:00:00+08:00",
        "mapping": mapping,
    }


def test_fragments_of_deepseek_are_what_was_asked_thought_and_said() -> None:
    exported = deepseek(
        ("1", "root", [("REQUEST", "q")]),
        ("2", "1", [("RESPONSE", "old")]),
        ("3", "1", [("SEARCH", ""), ("THINK", "hm"), ("RESPONSE", "new")]),
    )

    imported = collect(deepseek_conversation(exported))

    [conversation] = imported.conversations
    assert shown(conversation.messages) == ["u q", "a new"]
    assert [shown(branch) for branch in conversation.branches] == [["u q", "a old"]]
    said = conversation.messages[1]
    assert said.reasoning == "hm"
    assert said.origin is not None
    assert said.origin.vendor == "deepseek"
    assert conversation.created is not None
    assert conversation.created.hour == 10
    assert [piece.where for piece in imported.quarantined] == ["message 3"]


def claude(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    fields = {"uuid": "k1", "name": "T", "created_at": "2026-01-02T03:04:05.123456Z"}
    return {**fields, "chat_messages": list(messages), **more}


def claude_said(name: str, sender: str, *content: Any, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    fields = {"uuid": name, "sender": sender, "text": "", "content": blocks, "attachments": []}
    return {**fields, "created_at": "2026-01-02T03:04:06Z", **more}


def test_blocks_of_claude_are_texts_thoughts_calls_and_results() -> None:
    exported = claude(
        claude_said("1", "human", "q"),
        claude_said(
            "2",
            "assistant",
            {"type": "thinking", "thinking": "hm"},
            "Let me see.",
            {"type": "tool_use", "name": "search", "input": {"q": 1}},
            {"type": "tool_use", "id": "t2", "name": "fetch", "input": {}},
            {"type": "tool_result", "name": "search", "content": [{"type": "text", "text": "r1"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "r2"},
            "Found.",
        ),
        claude_said("3", "human", text="old form", content=[]),
    )

    [conversation] = collect(claude_conversation(exported)).conversations

    messages = conversation.messages
    assert shown(messages) == [
        "u q", "a Let me see. search fetch", "t r1", "t r2", "a Found.", "u old form",
    ]  # fmt: skip
    assert messages[1].reasoning == "hm"
    calls = [call.id for call in messages[1].tool_calls]
    assert [messages[2].tool_call_id, messages[3].tool_call_id] == calls


def test_what_is_attached_is_a_part_of_the_message() -> None:
    attached = [{"file_name": "a.txt", "extracted_content": "inside"}]
    message = claude_said("1", "human", "see", attachments=attached, files=[{"file_name": "b.png"}])

    [conversation] = collect(claude_conversation(claude(message))).conversations

    assert shown(conversation.messages) == ["u see\n\n[file a.txt]\ninside\n\n[file b.png]"]


def test_branches_of_claude_are_followed_by_their_parents() -> None:
    said = [
        claude_said("1", "human", "q", parent_message_uuid="0000"),
        claude_said("2", "assistant", "first", parent_message_uuid="1"),
        claude_said("3", "assistant", "second", parent_message_uuid="1"),
    ]

    [newest] = collect(claude_conversation(claude(*said))).conversations
    [chosen] = collect(
        claude_conversation(claude(*said, current_leaf_message_uuid="2"))
    ).conversations

    assert shown(newest.messages) == ["u q", "a second"]
    assert shown(chosen.messages) == ["u q", "a first"]


def test_what_claude_adds_is_reported() -> None:
    odd = [
        claude_said("1", "human", "q"),
        claude_said("2", "robot", "x"),
        claude_said("3", "assistant", {"type": "token_budget"}, "a"),
    ]

    imported = collect(claude_conversation(claude(*odd)))

    assert shown(imported.conversations[0].messages) == ["u q", "a a"]
    assert [piece.where for piece in imported.quarantined] == ["message 2", "message 3"]


EXPORTS = {
    Format.CHATGPT: [chain(gpt_said("user", "q"), gpt_said("assistant", "a"))],
    Format.DEEPSEEK: [deepseek(("1", "root", [("REQUEST", "q")]), ("2", "1", [("RESPONSE", "a")]))],
    Format.CLAUDE: [claude(claude_said("1", "human", "q"), claude_said("2", "assistant", "a"))],
}


@pytest.mark.parametrize("form", EXPORTS)
def test_an_export_is_known_by_what_is_in_it(form: Format, tmp_path: Path) -> None:
    file, packed = tmp_path / "conversations.json", tmp_path / "export.zip"
    file.write_text("\ufeff" + json.dumps(EXPORTS[form], indent=1), encoding="utf-8")
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("x/user.json", "{}")
        archive.writestr("x/conversations-000.json", file.read_bytes())
        archive.writestr("x/conversations-001.json", file.read_bytes())

    assert detect(file) is detect(packed) is form
    assert shown(read(file).conversations[0].messages) == ["u q", "a a"]
    assert len(read(packed).conversations) == 2


def test_lines_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    file = tmp_path / "chat.jsonl"

    for text in ('{"role":"user","content":"q"}\n', '{"messages":[]}', '{to\n{"role":"user"}', ""):
        file.write_text(text)
        assert detect(file) is Format.JSONL


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello", "expected, not what begins with b'hello'"),
        ("[]", "not an empty list"),
        ('[{"a":1}]', r"not a list of \['a'\]"),
        ("[1]", "not a list of 1"),
        ("{}", r"not a list of \[\]"),
        ('{"conversations":7}', "a list of conversations is expected"),
        ("{oops", "not JSON"),
    ],
)
def test_another_file_is_refused_with_what_was_found(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "file").write_text(text)

    with pytest.raises(ImportFailed, match=why) as caught:
        read(tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_file_that_is_not_there_and_a_wrong_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("other.json", "[]")

    with pytest.raises(ImportFailed, match="No such file"):
        read(tmp_path / "none")
    with pytest.raises(ImportFailed, match=r"a zip file with conversations\*\.json is expected"):
        read(tmp_path / "x.zip")


def test_of_an_export_that_was_cut_off_what_is_whole_is_read(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps(EXPORTS[Format.CHATGPT] * 3)[:-40])

    imported = read(file)

    assert len(imported.conversations) == 2
    [rest] = imported.quarantined
    assert rest.raw.startswith(b'{"title"')
    assert "conversations.json, character" in rest.where


def test_half_a_character_does_not_cost_the_export(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([chain(gpt_said("user", "cut \ud83d"))]))

    assert shown(read(file).conversations[0].messages) == ["u cut \ufffd"]


def test_what_is_no_conversation_is_reported_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_text(json.dumps([*EXPORTS[Format.CLAUDE], 7, claude({"sender": "robot"})]))

    imported = read(file)

    assert len(imported.conversations) == 1
    assert [piece.where for piece in imported.quarantined] == [
        f"{file}, conversation 1",
        f"{file}, conversation 2, message message-0",
    ]


def test_a_way_in_circles_and_a_lost_parent_are_survived() -> None:
    assert branches({"a": "b", "b": "a"}, "a") == []
    assert branches({"a": "lost", "b": "a"}) == [["a", "b"]]
    assert branches({}) == []


names = st.sampled_from(["a", "b", "c", "d", "e"])


@given(st.dictionaries(names, st.none() | names), st.none() | names)
def test_every_way_follows_parents_from_a_root(
    parents: dict[str, str | None], current: str | None
) -> None:
    ways = branches(parents, current)

    for way in ways:
        assert all(parents[child] == parent for parent, child in pairwise(way))
        assert parents[way[0]] not in parents
    if current in parents and ways and ways[0][-1] != current:
        assert current not in {node for way in ways for node in way[-1:]}


FIELDS = [
    "mapping", "message", "author", "role", "content", "parts", "fragments", "type", "text",
    "chat_messages", "uuid", "parent", "content_type", "thoughts", "input", "metadata",
]  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(values, values)
def test_no_shape_makes_a_reader_fail(tmp_path_factory: Any, one: Any, other: Any) -> None:
    file = tmp_path_factory.mktemp("x") / "conversations.json"
    message = {"author": {"role": "user"}, "content": one, "metadata": other}
    file.write_text(
        json.dumps([{"mapping": {"a": {"message": message}}, "chat_messages": one}, one, other])
    )

    for reader in (chatgpt_conversation, deepseek_conversation, claude_conversation):
        found: ImportResult = read_export(file, reader)
        assert isinstance(found.quarantined, tuple)
        assert all(isinstance(piece, Rejected) for piece in found.quarantined)


def test_an_entry_that_is_no_conversation_does_not_cost_the_export(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    for odd in ({"title": "empty"}, {"title": "empty", "mapping": None}):
        file.write_text(json.dumps([odd, *EXPORTS[Format.CHATGPT]]))

        imported = read(file)

        assert shown(imported.conversations[0].messages) == ["u q", "a a"]
        [piece] = imported.quarantined
        assert "`mapping` is expected" in piece.why
        assert piece.where == f"{file}, conversation 0, the entry"


@pytest.mark.parametrize(
    "message",
    [
        claude_said("2", "assistant", {"type": "canvas"}, text="the words"),
        claude_said("2", "assistant", {"type": "canvas", "text": "the words"}),
        claude_said("2", "assistant", {"type": "thinking", "thinking": "x"}, {"type": "canvas"},
                    text="the words"),
    ],
)  # fmt: skip
def test_a_message_with_a_block_that_is_not_known_keeps_its_text(message: dict[str, Any]) -> None:
    exported = claude(claude_said("1", "human", {"type": "canvas"}, text="q"), message)

    imported = collect(claude_conversation(exported))

    assert shown(imported.conversations[0].messages) == ["u q", "a the words"]
    assert {piece.where for piece in imported.quarantined} == {"message 1", "message 2"}


def test_what_a_stopped_answer_thought_stays_with_it() -> None:
    thoughts = {"content_type": "thoughts", "thoughts": [{"content": "first"}]}

    conversation = of_gpt(
        gpt_said("user", "q"),
        gpt_said("assistant", content=thoughts),
        gpt_said("assistant", "", status="in_progress"),
        gpt_said("user", "again"),
        gpt_said("assistant", "done"),
        gpt_said("user", "more"),
        gpt_said("assistant", content=thoughts),
    )

    _, stopped, _, done, _, last = conversation.messages
    assert (stopped.reasoning, stopped.text, stopped.interrupted) == ("first", "", True)
    assert (done.text, done.reasoning) == ("done", None)
    assert (last.reasoning, last.interrupted) == ("first", True)


def test_a_conversation_with_very_many_branches_is_read_in_linear_time() -> None:
    def cost(turns: int) -> float:
        nodes: list[tuple[str, str | None, dict[str, Any] | None]] = [("root", None, None)]
        parent = "root"
        for n in range(turns):
            nodes += [(f"u{n}", parent, gpt_said("user", "q")), (f"x{n}", parent, None)]
            parent = f"u{n}"
        exported = gpt(*nodes, current=parent)
        start = time.process_time()
        list(chatgpt_conversation(exported))
        return time.process_time() - start

    cost(100)
    # 8 times as much: what is quadratic takes 64 times as long.
    assert cost(8_000) < 40 * max(cost(1_000), 0.05)


@pytest.mark.parametrize("form", EXPORTS)
def test_a_damaged_zip_is_refused_with_its_name(form: Format, tmp_path: Path) -> None:
    packed = tmp_path / "export.zip"
    text = json.dumps(EXPORTS[form] * 50)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", text)
    whole = packed.read_bytes()
    start = whole.index(b"conversations.json") + len(b"conversations.json")
    for place in range(start, start + 60, 3):
        packed.write_bytes(whole[:place] + b"\xff\xff\xff" + whole[place + 3 :])

        with pytest.raises(ImportFailed, match=r"export\.zip: can't be read"):
            read(packed)


def test_a_zip_that_unpacks_to_far_more_is_refused_unread(tmp_path: Path) -> None:
    packed = tmp_path / "export.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", b"[" + b" " * (64 << 20) + b"]")

    with pytest.raises(ImportFailed, match="are no conversations"):
        read(packed)


def test_a_text_of_more_values_than_conversations_have_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    file.write_bytes(b"[" + b"{}," * 15_000_000 + b"{}]")

    with pytest.raises(ImportFailed, match="values are no conversations"):
        read(file)


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "conversations.json"
    with file.open("wb") as opened:
        opened.write(b"[")
        opened.truncate(MAX_BYTES + 1)

    with pytest.raises(ImportFailed, match="too much at once"):
        read(file)
