"""What the ledger says of a prefix is true of the bytes that went out."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_context import (
    AgentContext,
    Append,
    Compress,
    ContextRef,
    Extend,
    Message,
    Messages,
    Send,
    SendOptions,
    SlidingWindow,
    Tool,
    ToolCall,
)
from agent_context.compression import EvictToolResults
from agent_context.errors import AgentContextError
from agent_context.prompt_cache import PrefixChangeCause
from agent_context.protocol import Ask, CacheReport, Clear, Insert, Pop, Remove, Rewind, Update
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.zhipu import ZhipuBackend

BACKENDS = [DeepSeekBackend, OpenAIBackend, ZhipuBackend]
TOOLS = [Tool(name="f"), Tool(name="g", description="does")]
KINDS = ["user", "user", "user", "said", "system", "calls", "calls", "result", "result", "blank"]
IDS = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2, unique=True)

drafts = st.lists(st.tuples(st.sampled_from(KINDS), IDS), max_size=2)
"""Messages without their text, which a test makes unique."""

options = st.fixed_dictionaries(
    {},
    optional={
        "thinking": st.just(True),
        "effort": st.sampled_from(["low", "medium", "high"]),
        "tools": st.sampled_from([TOOLS, TOOLS[:1], TOOLS[::-1]]),
        "extra": st.sampled_from([{"user_id": "u"}, {"top_k": 3}]),
        "scratch": st.sampled_from(["now", Message.tool("a", "odd")]),
        "max_tokens": st.just(50),
        "commit": st.just("manual"),
    },
)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["send"] * 6), drafts, options | st.just({})),
        st.tuples(
            st.sampled_from(["append", "append", "extend", "insert", "update", "remove", "pop"])
            | st.sampled_from(["rewind", "clear", "slide", "evict"]),
            drafts,
            st.integers(0, 6),
        ),
    ),
    max_size=14,
)


class Server(httpx.MockTransport):
    """Answers with a new text each time, and keeps what it was sent."""

    def __init__(self) -> None:
        self.body = b""
        self.numbers = count()
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.body = request.content
        message = {"role": "assistant", "content": f"<{next(self.numbers)}>"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"model": "m", "choices": [choice]})

    def message(self, kind: str, ids: list[str]) -> Message:
        text = f"<{next(self.numbers)}>"
        match kind:
            case "user":
                return Message.user(text)
            case "said":
                return Message.assistant(text)
            case "system":
                return Message.system(text)
            case "calls":
                return Message.assistant(text, tool_calls=[ToolCall(id=i, name="f") for i in ids])
            case "result":
                return Message.tool(ids[0], text)
            case _:
                return Message.user(" ")


def stored_part(body: bytes, stored: tuple[Message, ...]) -> bytes:
    """The bytes up to the last message that says something which is stored."""
    marks = {message.text for message in stored if message.text.strip()}
    said = json.loads(body)["messages"]
    last = max(
        (n for n, each in enumerate(said, 1) if any(mark in str(each) for mark in marks)), default=0
    )
    head = body[: body.index(b'"messages":[') + len(b'"messages":[')]
    part = head + b",".join(map(orjson.dumps, said[:last]))
    assert body.startswith(part)
    return part


def edit(kind: str, said: list[Message], at: int) -> Ask[Any]:
    one = said[0] if said else Message.user(" ")
    edits: dict[str, Ask[Any]] = {
        "append": Append(one),
        "extend": Extend(said),
        "insert": Insert(at, one),
        "update": Update(at, one),
        "remove": Remove(at),
        "pop": Pop(),
        "rewind": Rewind(at),
        "clear": Clear(),
        "slide": Compress(SlidingWindow(1)),
        "evict": Compress(EvictToolResults(0)),
    }
    return edits[kind]


def sent(ctx: ContextRef, server: Server, said: list[Message], chosen: dict[str, Any]) -> bytes:
    """The part of a turn's request that is stored; nothing if it was refused."""
    server.body = b""
    try:
        ctx.ask(Send(SendOptions(**chosen), messages=said))
    except AgentContextError:
        return b""
    stored = ctx.ask(Messages())
    return stored_part(server.body, stored if "commit" in chosen else stored[:-1])


@pytest.mark.parametrize("kind", BACKENDS, ids=lambda kind: str(kind.vendor))
@example(
    [
        ("send", [("calls", ["a"])], {}),
        ("send", [("result", ["a"])], {"commit": "manual"}),
        ("send", [], {}),
    ]
)
@given(steps)
def test_a_prefix_held_if_and_only_if_the_bytes_did(
    kind: type[ChatCompletionsBackend], said: list[tuple[str, Any, Any]]
) -> None:
    server = Server()
    ctx = AgentContext.start(
        kind(api_key="k", transport=server), immutable=[Message.system("Be terse.")]
    )
    last = b""

    for step, draft, how in said:
        new = [server.message(*each) for each in draft]
        if step != "send":
            try:
                ctx.ask(edit(step, new, how))
            except AgentContextError:
                continue
        elif part := sent(ctx, server, new, how):
            report = ctx.ask(CacheReport()).last
            assert report is not None
            assert (report.cause is None) is server.body.startswith(last), (report, last)
            assert report.cause is not PrefixChangeCause.SYSTEM
            last = part
    ctx.stop()
