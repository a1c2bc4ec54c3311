"""Whatever was imported, the vendors take it."""

import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import AgentContext, Extend, Messages, Send
from agent_context._context.stored_message import from_message
from agent_context.imports import ImportResult, read
from agent_context.imports.chatgpt import chatgpt_conversation
from agent_context.imports.claude import claude_conversation
from agent_context.imports.deepseek import deepseek_conversation
from agent_context.imports.jsonl import jsonl_pieces
from agent_context.imports.responses_api import messages_from
from agent_context.imports.result import (
    ImportedConversation,
    Rejected,
    collect,
    own_ids,
)
from agent_context.wire.repair import repair_history
from agent_context_backends.scripted import ScriptedBackend
from tests.histories import DIALECTS, call_item, message_item, reasoning_item
from tests.histories import messages as any_message
from tests.imports.test_exports import chain, claude, claude_said, deepseek, gpt_said
from tests.support.examples import examples
from tests.wire.rules import record_faults
from tests.wire.test_vendor_rules import refusals

texts = st.sampled_from(["", " ", "q", "grüß dich", '{"a": 1}', "x" * 50])
kinds = st.sampled_from(["text", "code", "thoughts", "execution_output", "tether_quote", "odd"])
gpt_messages = st.none() | st.builds(
    lambda role, kind, text, tool, more: gpt_said(
        role,
        content={"content_type": kind, "parts": [text], "text": text}
        | ({"thoughts": [{"content": text}]} if kind == "thoughts" else {}),
        recipient=tool,
        name=more,
    ),
    st.sampled_from(["user", "assistant", "assistant", "tool", "tool", "system", "robot"]),
    kinds,
    texts,
    st.sampled_from(["all", "all", "python", "dalle.text2im"]),
    st.sampled_from([None, "python"]),
)
blocks = st.builds(
    lambda kind, text, name: {
        "type": kind, "text": text, "thinking": text, "name": "f", "input": {"x": 1},
        "id": name, "tool_use_id": name, "content": [{"type": "text", "text": text}],
    },
    st.sampled_from(["text", "thinking", "tool_use", "tool_use", "tool_result", "tool_result"]),
    texts,
    st.sampled_from([None, "a", "b", "b" * 60]),
)  # fmt: skip
claude_messages = st.builds(
    lambda sender, content: claude_said("", sender, *content),
    st.sampled_from(["human", "assistant", "assistant"]),
    st.lists(blocks, max_size=4),
)
fragments = st.lists(
    st.tuples(st.sampled_from(["REQUEST", "THINK", "RESPONSE", "SEARCH"]), texts), max_size=3
)
items = st.one_of(
    st.just({"role": "user", "content": "q"}),
    st.builds(call_item, st.sampled_from(["a", "b", ""])),
    st.builds(
        lambda name: {"type": "function_call_output", "call_id": name, "output": "r"},
        st.sampled_from(["a", "b", "gone"]),
    ),
    st.builds(message_item, texts),
    st.just(reasoning_item("openai", "hm")),
    st.just({"type": "computer_call", "call_id": "x"}),
)


def from_items(found: list[dict[str, Any]]) -> Iterator[ImportedConversation | Rejected]:
    pieces = list(messages_from([("row", item, None) for item in found], "openai"))
    yield from (piece for piece in pieces if isinstance(piece, Rejected))
    said = [piece[0] for piece in pieces if not isinstance(piece, Rejected)]
    yield ImportedConversation(tuple(own_ids(said)))


def in_a_row(steps: list[list[tuple[str, str]]]) -> dict[str, Any]:
    names = ["root", *map(str, range(len(steps)))]
    return deepseek(*((str(n), names[n], step) for n, step in enumerate(steps)))


imports: st.SearchStrategy[Iterable[ImportedConversation | Rejected]] = st.one_of(
    st.lists(gpt_messages, min_size=1, max_size=12).map(
        lambda said: chatgpt_conversation(chain(*said))
    ),
    st.lists(claude_messages, max_size=6).map(lambda said: claude_conversation(claude(*said))),
    st.lists(fragments, max_size=6).map(lambda steps: deepseek_conversation(in_a_row(steps))),
    st.lists(items, max_size=12).map(from_items),
    st.lists(any_message, max_size=8).map(
        lambda said: jsonl_pieces([from_message(message).to_json_line() for message in said])
    ),
)


@examples(3)
@given(imports)
def test_what_is_sent_of_an_import_breaks_no_rule(
    pieces: Iterable[ImportedConversation | Rejected],
) -> None:
    for conversation in collect(pieces).conversations:
        records = [from_message(message) for message in conversation.messages]
        assert len({record.id for record in records}) == len(records)
        for dialect in DIALECTS:
            assert record_faults(repair_history(records, dialect), dialect) == []


@given(imports)
def test_every_vendor_accepts_what_is_sent_of_an_import(
    pieces: Iterable[ImportedConversation | Rejected],
) -> None:
    pytest.importorskip("deepseek_recipe")

    for conversation in collect(pieces).conversations:
        records = [from_message(message) for message in conversation.messages]
        assert not any(refusals(records).values()), refusals(records)


@given(
    st.lists(gpt_messages, min_size=1, max_size=12)
    | st.lists(claude_messages, min_size=1, max_size=6)
)
def test_no_result_of_an_export_is_without_its_call(said: list[Any]) -> None:
    is_claude = said[0] is not None and "sender" in said[0]
    pieces = claude_conversation(claude(*said)) if is_claude else chatgpt_conversation(chain(*said))

    for conversation in collect(pieces).conversations:
        called: Counter[str] = Counter()
        answered: Counter[str] = Counter()
        for message in conversation.messages:
            called.update(call.id for call in message.tool_calls)
            if message.tool_call_id is not None:
                answered[message.tool_call_id] += 1
            assert answered <= called


async def test_a_hundred_imported_conversations_go_on(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "s.db")
    database.execute("CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at)")
    database.execute(
        "CREATE TABLE agent_messages (id INTEGER PRIMARY KEY, session_id, message_data, created_at)"
    )
    rows = [
        (f"s{n}", orjson.dumps(item).decode())
        for n in range(100)
        for item in ({"role": "user", "content": f"q{n}"}, call_item("a"), message_item("so"))
    ]
    insert = "INSERT INTO agent_messages (session_id, message_data) VALUES (?, ?)"
    database.executemany(insert, rows)
    database.commit()
    database.close()
    imported: ImportResult = read(tmp_path / "s.db")

    assert len(imported.conversations) == 100
    for number, conversation in enumerate(imported.conversations):
        backend = ScriptedBackend(["Go on."])
        context = AgentContext.start(backend)
        await context.aask(Extend(conversation.messages))
        await context.aask(Send())
        said = await context.aask(Messages())
        assert said[0].text == f"q{number}"
        assert said[-1].text == "Go on."
        context.stop()
