"""Random histories, as records: with calls answered, unanswered, doubled, interleaved, orphaned."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from agent_context.messages import Message, Origin, ToolCall
from agent_context.records import Record, record_of
from agent_context.vector import Vector
from agent_context.wire.dialect import Dialect
from agent_context.zones import Zones

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


messages = st.one_of(
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
        st.sampled_from(["", "{", "[]", '{"a": 1}']),
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
    st.builds(Message.tool, ids, texts),
)
records = messages.map(record_of)
histories = st.lists(records, max_size=14)


def user(text: str = "hi") -> Record:
    return record_of(Message.user(text))


def said(text: str = "hello") -> Record:
    return record_of(Message.assistant(text))


def asking(*names: str) -> Record:
    return record_of(Message.assistant(tool_calls=calls(*names)))


def result(name: str, text: str = "done") -> Record:
    return record_of(Message.tool(name, text))


def zones_of(records: Sequence[Record]) -> Zones:
    return Zones(incremental=Vector.of(records))
