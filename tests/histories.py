"""Random histories, as records: with calls answered, unanswered, doubled, interleaved, orphaned."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zones
from agent_context.messages import Message, Origin, ToolCall
from agent_context.wire.dialect import Dialect

DEEPSEEK = Dialect(
    name="deepseek",
    vendor="deepseek",
    keep_reasoning=True,
    backfill_reasoning=True,
    other_parts=frozenset(),
)
OPENAI = Dialect(name="openai", vendor="openai", system_role="developer", max_call_id=40)
ZHIPU = Dialect(
    name="zhipu",
    vendor="zhipu",
    keep_reasoning=True,
    max_call_id=40,
    needs_user=True,
    merge_same_role=True,
    names=False,
    images=False,
)
DIALECTS = [DEEPSEEK, OPENAI, ZHIPU]

OPENAI_ITEMS = Dialect(
    name="openai-responses",
    vendor="openai",
    api="responses",
    system_role="developer",
    max_call_id=64,
    unique_call_ids=True,
)
DEEPSEEK_ITEMS = Dialect(
    name="deepseek-responses",
    vendor="deepseek",
    api="responses",
    keep_reasoning=True,
    backfill_reasoning=True,
    unique_call_ids=True,
    calls_last=True,
    merge_same_role=True,
)
ZHIPU_ITEMS = Dialect(
    name="zhipu-responses",
    vendor="zhipu",
    api="responses",
    keep_reasoning=True,
    max_call_id=64,
    unique_call_ids=True,
    calls_last=True,
    needs_user=True,
    merge_same_role=True,
    images=False,
)
ITEM_DIALECTS = [OPENAI_ITEMS, DEEPSEEK_ITEMS, ZHIPU_ITEMS]

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/x.png", "width": 8}}
PARTS: list[dict[str, Any]] = [
    IMAGE,
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "image_url", "image_url": {"url": "file:///x.png"}},
    {"type": "image_url", "image_url": {"url": "data:x"}},
    {"type": "image_url", "image_url": "https://example.org/x.png"},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "video_url", "video_url": {"url": "https://example.org/x.mp4"}},
    {"type": "tool_use", "id": "a"},
    {"type": "text", "text": "see"},
    {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}},
    {"type": "text", "text": "kept", "cache_control": {"type": "ephemeral"}},
    {"type": "input_text", "text": "seen"},
    {"type": "output_text", "text": "said", "annotations": []},
    {"type": "input_image", "image_url": "https://example.org/x.png"},
]

ids = st.sampled_from(["a", "b", "c", "", "long" * 20, "long" * 20 + "!"])
texts = st.sampled_from(["", " \n", "hi", "grüß dich", 'a "quote"\\', "<｜tool｜>", "x" * 300])
contents = st.one_of(
    texts, st.lists(st.one_of(texts.map(lambda text: {"type": "text", "text": text})), max_size=2)
)
origins = st.sampled_from([None, Origin(vendor="deepseek"), Origin(vendor="zhipu", model="glm")])


parts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3)


def calls(*names: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id=name, name="f", arguments='{"x": 1}') for name in names)


def _assistant(
    content: object, names: Sequence[str], reasoning: str | None, origin: Origin | None
) -> Message:
    fields = {"role": "assistant", "content": content, "reasoning": reasoning, "origin": origin}
    return Message.model_validate({**fields, "tool_calls": calls(*names), "annotations": []})


def reasoning_item(vendor: str, thought: str, *, sealed: bool = True) -> dict[str, Any]:
    """A reasoning item: OpenAI's comes encrypted, the others' in full."""
    if vendor == "openai":
        summary = [{"type": "summary_text", "text": thought}]
        item = {"type": "reasoning", "id": "rs_1", "summary": summary}
        return {**item, "encrypted_content": "gAAA"} if sealed else item
    content = [{"type": "reasoning_text", "text": thought}]
    return {"type": "reasoning", "id": "r1", "content": content, "summary": []}


def message_item(text: str, phase: str = "final_answer") -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    fields = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
    return {**fields, "phase": phase, "content": content}


def call_item(name: str) -> dict[str, Any]:
    fields = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": name}
    return {**fields, "name": "f", "arguments": '{"x": 1}'}


def answered(vendor: str, items: Sequence[dict[str, Any]], *, edited: str | None = None) -> Message:
    """What a Responses API answered in these items; `edited` is put in their place."""
    texts = [part["text"] for item in items for part in item.get("content", ())]
    thoughts = [
        part["text"]
        for item in items
        if item["type"] == "reasoning"
        for part in (*item["summary"], *item.get("content", ()))
    ]
    text = "\n\n".join(text for text in texts if text not in thoughts)
    names = [item["call_id"] for item in items if item["type"] == "function_call"]
    message = _assistant(
        text if edited is None else edited,
        names,
        "\n\n".join(thoughts) or None,
        Origin(vendor=vendor, model="m"),
    )
    return message.model_copy(update={"output_items": list(items)})


@st.composite
def answers_in_items(draw: st.DrawFn) -> Message:
    vendor = draw(st.sampled_from(["openai", "deepseek", "zhipu"]))
    items: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()):
            items.append(reasoning_item(vendor, "hm", sealed=draw(st.integers(0, 4)) > 0))
        names = draw(st.lists(ids, max_size=2))
        text = [message_item("so", "commentary")] if draw(st.booleans()) else []
        items += [*text, *map(call_item, names)]
    edit = draw(st.sampled_from([None, None, None, "edited", ""]))
    return answered(vendor, items, edited=edit)


messages = st.one_of(
    answers_in_items(),
    st.builds(
        lambda content: Message.model_validate({"role": "user", "content": content}), contents
    ),
    st.builds(
        lambda role, content: Message.model_validate({"role": role, "content": content}),
        st.sampled_from(["user", "user", "assistant", "system"]),
        parts,
    ),
    st.builds(
        lambda name, arguments: Message.assistant(
            tool_calls=[ToolCall(id="a", name=name, arguments=arguments)]
        ),
        st.sampled_from(["", "a.b", "名", "f" * 80]),
        st.sampled_from(
            ["", "{", "[]", "null", "NaN", '{"a": 1}{', '{"a": "\n"}', '"{}"', '{"a": 1}']
        ),
    ),
    st.builds(Message.system, texts),
    st.builds(Message.user, st.just("named"), name=st.sampled_from(["ann", "ann lee", ""])),
    st.builds(
        _assistant,
        contents,
        st.lists(ids, max_size=3),
        st.sampled_from([None, "", "thought"]),
        origins,
    ),
    st.builds(Message.tool, ids, texts),
    st.builds(Message.tool, ids, texts, interim=st.booleans()),
)
records = messages.map(from_message)
histories = st.lists(records, max_size=14)


def user(text: str = "hi") -> StoredMessage:
    return from_message(Message.user(text))


def said(text: str = "hello") -> StoredMessage:
    return from_message(Message.assistant(text))


def asking(*names: str) -> StoredMessage:
    return from_message(Message.assistant(tool_calls=calls(*names)))


def result(name: str, text: str = "done", *, interim: bool = False) -> StoredMessage:
    return from_message(Message.tool(name, text, interim=interim))


def zones_of(records: Sequence[StoredMessage]) -> Zones:
    return Zones(incremental=PersistentVector.of(records))
