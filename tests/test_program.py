"""The program that everybody writes first, over real HTTP, with each vendor's backend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from agent_context import (
    AgentContext,
    Append,
    BackendError,
    ChangeEvent,
    Compress,
    ContextBackend,
    ContextRef,
    ErrorKind,
    EstimateTokens,
    FromJsonl,
    Message,
    Messages,
    Role,
    Send,
    SendOptions,
    SendStream,
    Subscribe,
    Summarize,
    TextDelta,
    ToJsonl,
    Tool,
)
from agent_context.protocol import FindByRole, Len, Unsubscribe
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.zhipu import ZhipuBackend
from tests.support.sse_server import CUT, Received, Reply, SseServer, answer, in_thread, json_reply

USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 32},
}
LONG = "It was a long story about rain. " * 30
BACKENDS: list[tuple[type[ChatCompletionsBackend], str]] = [
    (DeepSeekBackend, "deepseek-flash"),
    (OpenAIBackend, "gpt-4.1"),
    (ZhipuBackend, "glm-4.6"),
]


def serve(request: Received) -> Reply:
    body = request.json
    asked = body["messages"][-1]["content"]
    text = "It rained." if asked.startswith("Summarise") else f"You said: {asked[:12]}"
    if body.get("stream"):
        return answer(*re.findall(r".{1,5}", text), usage=USAGE)
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json_reply({"model": body["model"], "choices": [choice], "usage": USAGE})


@pytest.fixture
def server() -> Iterator[SseServer]:
    with in_thread(serve) as server:
        yield server


@pytest.fixture(params=BACKENDS, ids=["deepseek", "openai", "zhipu"])
def ctx(request: pytest.FixtureRequest, server: SseServer) -> ContextRef:
    backend, model = request.param
    return AgentContext.start(
        backend(api_key="sk-test", base_url=server.url),
        immutable=[Message.system("You are terse.")],
        options=SendOptions(model=model, max_tokens=500),
    )


def test_the_whole_program(ctx: ContextRef, server: SseServer) -> None:
    seen: list[ChangeEvent] = []
    token = ctx.ask(Subscribe(seen.append))
    ctx.ask(Append(Message.user(f"Hello {LONG}")))
    reply = ctx.ask(Send())
    with ctx.ask(
        SendStream(messages=[Message.user("And now?")], options=SendOptions(scratch="It is 12:00."))
    ) as stream:
        pieces = [event.text for event in stream if isinstance(event, TextDelta)]
    report = ctx.ask(Compress(Summarize(keep=2)))
    text = ctx.ask(ToJsonl())
    ctx.ask(Unsubscribe(token))

    assert reply.message.text == "You said: Hello It was"
    assert (reply.finish_reason, reply.usage.input_tokens, reply.usage.cached_tokens) == (
        "stop", 40, 32,
    )  # fmt: skip
    assert "".join(pieces) == stream.message.text == "You said: It is 12:00."
    assert stream.completion.usage.cached_tokens == 32
    assert report.changed
    assert [m.text for m in ctx.ask(Messages())][1:] == [
        "Summary so far: It rained.", "And now?", "You said: It is 12:00.",
    ]  # fmt: skip
    assert ctx.ask(FindByRole(Role.USER))[0][0] == 2
    assert ctx.ask(EstimateTokens()).total > 0
    assert text.count("\n") == ctx.ask(Len()) + 1
    assert server.requests[0].headers["authorization"] == "Bearer sk-test"


async def test_the_whole_program_from_asyncio(ctx: ContextRef) -> None:
    await ctx.aask(Append(Message.user("Hello")))
    reply = await ctx.aask(Send())
    async with await ctx.aask(SendStream(messages=[Message.user("And now?")])) as stream:
        pieces = [event.text async for event in stream if isinstance(event, TextDelta)]

    assert reply.message.text == "You said: Hello"
    assert "".join(pieces) == stream.message.text == "You said: And now?"
    assert await ctx.aask(Len()) == 5


def test_each_request_begins_with_the_bytes_of_the_last_one(
    ctx: ContextRef, server: SseServer
) -> None:
    options = SendOptions(tools=[Tool(name="clock")], effort=None)
    for n in range(4):
        scratch = SendOptions(scratch=f"It is {n}:00.", temperature=None).merged_over(options)
        if n % 2:
            list(ctx.ask(SendStream(scratch, messages=[Message.user(f"turn {n}")])))
        else:
            ctx.ask(Send(scratch, messages=[Message.user(f"turn {n}")]))

    bodies = [request.body for request in server.requests]
    stored = [
        body[: body.index(b',{"role":', body.index(b"turn %d" % n))]
        for n, body in enumerate(bodies)
    ]
    assert all(
        later.startswith(earlier) for earlier, later in zip(stored, bodies[1:], strict=False)
    )


def test_plain_pykka_references_take_the_same_messages(ctx: ContextRef) -> None:
    ctx.actor_ref.tell(Append(Message.user("Hello")))

    reply: Any = ctx.actor_ref.ask(Send(), timeout=20)

    assert reply.message.text == "You said: Hello"
    assert ctx.actor_ref.ask(Len()) == 3


def test_what_goes_out_is_what_was_imported(ctx: ContextRef, server: SseServer) -> None:
    lines = '{"role":"user","content":"Hello"}\n{"role":"assistant","content":"Hi."}'
    ctx.ask(FromJsonl(lines))

    ctx.ask(Send(messages=[Message.user("Again")]))

    sent = [message["content"] for message in server.requests[0].json["messages"]]
    assert sent == ["You are terse.", "Hello", "Hi.", "Again"]


@pytest.mark.parametrize(("backend", "model"), BACKENDS)
def test_a_connection_that_breaks_keeps_what_had_arrived(
    backend: type[ChatCompletionsBackend], model: str
) -> None:
    half = answer("Half of", " it")
    with in_thread([Reply([*half.steps[:1], CUT])]) as server:
        made: ContextBackend = backend(api_key="k", base_url=server.url)
        ctx = AgentContext.start(made, options=SendOptions(model=model))
        stream = ctx.ask(SendStream(messages=[Message.user("Hello")]))

        with pytest.raises(BackendError) as raised:
            list(stream)

    assert raised.value.kind is ErrorKind.TRANSPORT
    assert raised.value.retryable
    assert [message.text for message in ctx.ask(Messages())] == ["Hello", "Half of"]
    assert stream.message.interrupted


def test_a_busy_server_is_asked_again_as_soon_as_it_says() -> None:
    busy = json_reply(
        {"error": {"message": "slow down", "code": "rate_limit_exceeded"}},
        status=429,
        headers={"retry-after": "0"},
    )
    ok = {
        "choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]
    }
    with in_thread([busy, busy, json_reply(ok)]) as server:
        ctx = AgentContext.start(OpenAIBackend(api_key="k", base_url=server.url))

        reply = ctx.ask(Send(SendOptions(model="gpt-4.1"), messages=[Message.user("Hello")]))

    assert reply.message.text == "Hi."
    assert len(server.requests) == 3
