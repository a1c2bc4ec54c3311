"""Anthropic's Messages API: what goes out, what comes back, where the cache has breakpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import httpx2
import pytest
from anthropic.types import RawMessageStreamEvent
from anthropic.types.message_create_params import (
    MessageCreateParamsNonStreaming,
    MessageCreateParamsStreaming,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from agent_context import (
    AgentContext,
    Completion,
    FinishReason,
    Message,
    ReasoningDelta,
    Send,
    SendOptions,
    SendStream,
    TextDelta,
    Tool,
    ToolCall,
)
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.backend import Request
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Origin
from agent_context.testing import request_of
from agent_context.wire.message_blocks import render_messages
from agent_context.wire.rendering import RequestRenderer
from agent_context.wire.repair import repair_slice
from agent_context_backends.anthropic import AnthropicBackend
from tests.histories import histories
from tests.support.examples import examples

WHOLE = TypeAdapter(MessageCreateParamsNonStreaming)
STREAMED = TypeAdapter(MessageCreateParamsStreaming)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
LOOK = Tool(name="look", description="Look.", parameters={"type": "object", "properties": {}})
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5}


def message(*blocks: dict[str, Any], stop: str = "end_turn", **fields: Any) -> dict[str, Any]:
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6",
        "content": list(blocks), "stop_reason": stop, "stop_sequence": None,
        "usage": {**USAGE, "output_tokens": 7}, **fields,
    }  # fmt: skip


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def thinking(said: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": said, "signature": "c2lnbg=="}


def use(name: str, given: dict[str, Any], call: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": given}


def deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": part} for part in block["text"])
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": part} for part in block["thinking"])
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            whole = json.dumps(block["input"])
            parts = ["", whole[:3], whole[3:]]
            yield from ({"type": "input_json_delta", "partial_json": part} for part in parts)
        case _:
            raise AssertionError(block)


EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def events(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that stream an answer, as they are published."""
    start = {**answer, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    said: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(answer["content"]):
        opened = {**block, **EMPTY.get(block["type"], {})}
        said.append({"type": "content_block_start", "index": index, "content_block": opened})
        said += [
            {"type": "content_block_delta", "index": index, "delta": delta}
            for delta in deltas(block)
        ]
        said.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": answer["stop_reason"], "stop_sequence": None}
    said.append({"type": "message_delta", "delta": end, "usage": {"output_tokens": 7}})
    return [*said, {"type": "message_stop"}]


def sse(said: list[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (one["type"].encode(), json.dumps(one).encode())
        for one in said
    )


class Site:
    """Answers one request after the other, and keeps what it was sent."""

    def __init__(self, *answers: dict[str, Any] | tuple[int, dict[str, Any]]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.backend = AnthropicBackend(api_key="sk-ant-api", transport=httpx.MockTransport(self))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            return httpx.Response(answer[0], json=answer[1])
        if self.bodies[-1].get("stream"):
            return httpx.Response(200, content=sse(events(answer)))
        return httpx.Response(200, json=answer)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.content) for request in self.requests]


def body_of(*said: Message, **options: Any) -> dict[str, Any]:
    site = Site(message(text("ok")))
    ctx = AgentContext.start(site.backend, options=SendOptions(**options))
    ctx.ask(Send(messages=said))
    ctx.stop()
    return site.bodies[0]


async def answer_of(answer: dict[str, Any], *, stream: bool) -> Completion:
    backend = Site(answer).backend
    request = request_of(backend, Message.user("hi"))
    if not stream:
        return await backend.send(request)
    *_, last = [event async for event in backend.send_stream(request)]
    completion: Completion = last.completion  # type: ignore[union-attr]
    return completion


# What goes out.


def test_a_conversation_goes_out_as_the_api_wants_it() -> None:
    site = Site(message(text("Oslo.")))
    system = [Message.system("Be terse."), Message.system("You know places.")]
    ctx = AgentContext.start(site.backend, immutable=system)
    ctx.ask(Send("Capital of Norway?", SendOptions(scratch="It is noon.", max_tokens=50)))

    [body] = site.bodies
    WHOLE.validate_python(body)
    assert [block["text"] for block in body["system"]] == ["Be terse.", "You know places."]
    assert [(said["role"], said["content"][0]["text"]) for said in body["messages"]] == [
        ("user", "Capital of Norway?"),
        ("user", "It is noon."),
    ]
    assert (body["model"], body["max_tokens"]) == ("claude-sonnet-4-6", 50)


def test_the_key_and_the_version_go_in_headers() -> None:
    site = Site(message(text("hi")))
    AgentContext.start(site.backend).say("hi")

    [request] = site.requests
    assert request.url == "https://api.anthropic.com/v1/messages"
    assert request.headers["x-api-key"] == "sk-ant-api"
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers


def test_results_of_calls_go_out_in_one_message_behind_them() -> None:
    calls = [ToolCall(id=name, name="look", arguments="{}") for name in ("a", "b")]
    results = [Message.tool("b", "blue"), Message.tool("a", "red")]
    said = body_of(
        Message.user("go"), Message.assistant("I look.", tool_calls=calls), *results,
        Message.user("and?"),
    )["messages"]  # fmt: skip

    assert [one["role"] for one in said] == ["user", "assistant", "user", "user"]
    assert [block["type"] for block in said[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in said[2]["content"]] == ["a", "b"]


def test_images_and_files_become_blocks() -> None:
    png = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    far = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    pdf = {"type": "file", "file": {"file_data": "data:application/pdf;base64,BBBB"}}
    sent = body_of(Message.from_dict({"role": "user", "content": [png, far, pdf]}))

    WHOLE.validate_python(sent)
    blocks = sent["messages"][0]["content"]
    assert [block["source"]["type"] for block in blocks] == ["base64", "url", "base64"]
    assert blocks[0]["source"] == {"type": "base64", "media_type": "image/png", "data": "AAAA"}


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"thinking": True}, {"thinking": {"type": "adaptive"}}),
        ({"thinking": False}, {}),
        (
            {"effort": "low"},
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ),
        (
            {"model": "claude-sonnet-4-5", "effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        ({"stop": ["END"], "temperature": 0.5}, {"stop_sequences": ["END"], "temperature": 0.5}),
        (
            {"tools": [LOOK], "tool_choice": "required"},
            {"tool_choice": {"type": "any"}},
        ),
        (
            {"tools": [LOOK], "tool_choice": "look"},
            {"tool_choice": {"type": "tool", "name": "look"}},
        ),
        (
            {
                "effort": "high",
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "object"}},
                },
            },
            {
                "output_config": {
                    "effort": "high",
                    "format": {"type": "json_schema", "schema": {"type": "object"}},
                }
            },
        ),
    ],
)
def test_options_are_said_in_the_words_of_the_api(
    options: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = body_of(Message.user("hi"), **options)

    WHOLE.validate_python(body)
    assert {name: body.get(name) for name in fields} == fields
    if not {"thinking", "effort"} & {name for name, wanted in options.items() if wanted}:
        assert "thinking" not in body


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 1.5}, "temperature of from 0 to 1|takes a temperature"),
        ({"thinking": True, "temperature": 0.5}, "while it thinks"),
        ({"thinking": True, "tools": [LOOK], "tool_choice": "look"}, "while it thinks"),
        ({"seed": 1}, "takes no seed"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"extra": {"system": "x"}}, "system can't be set there"),
    ],
)
def test_what_the_api_would_refuse_is_refused_before(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOptions, match=words):
        body_of(Message.user("hi"), **options)


# Cache breakpoints.


def marked(body: dict[str, Any]) -> list[str]:
    """The texts of the blocks with a breakpoint, in order."""
    blocks = [*body.get("tools", ()), *body.get("system", ())]
    blocks += [block for said in body["messages"] for block in said["content"]]
    return [
        str(block.get("text") or block.get("content") or block["type"])
        for block in blocks
        if "cache_control" in block
    ]


def test_breakpoints_stand_where_the_last_request_ended_and_where_this_one_does() -> None:
    site = Site(*(message(text(f"answer {number}")) for number in range(4)))
    ctx = AgentContext.start(site.backend, immutable=[Message.system("Be terse.")])
    for number in range(4):
        ctx.ask(Send(f"question {number}", SendOptions(scratch=f"now {number}")))

    assert [marked(body) for body in site.bodies] == [
        ["Be terse.", "question 0"],
        ["Be terse.", "question 0", "question 1"],
        ["Be terse.", "question 1", "question 2"],
        ["Be terse.", "question 2", "question 3"],
    ]


def without_marks(body: dict[str, Any]) -> list[str]:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name != "cache_control"}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return [json.dumps(plain(said)) for said in body["messages"]]


def test_a_request_begins_with_the_one_before_it() -> None:
    look = message(thinking("Hm."), text("I look."), use("look", {}), stop="tool_use")
    site = Site(look, message(text("Blue.")), message(text("Bye.")))
    ctx = AgentContext.start(site.backend, options=SendOptions(tools=[LOOK]))
    answer = ctx.say("Which colour?")
    ctx.ask(Send(messages=[Message.tool(answer.tool_calls[0].id, "blue")]))
    ctx.say("Thanks.")

    said = [without_marks(body) for body in site.bodies]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(said))
    for body in site.bodies:
        WHOLE.validate_python(body)
        assert len(marked(body)) <= 4


# What comes back.

ANSWERS = {
    "text": message(text("Oslo.")),
    "thought": message(thinking("Norway, so:"), text("Oslo.")),
    "calls": message(
        text("I look."), use("look", {"at": "a"}), use("look", {}, "toolu_2"), stop="tool_use"
    ),
    "thought and call": message(thinking("Hm."), use("look", {"é": [1]}), stop="tool_use"),
    "cut": message(text("Os"), stop="max_tokens"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_read_as_the_vendors_own_client_reads_it(
    name: str, stream: bool
) -> None:
    answer = ANSWERS[name]
    for event in events(answer):
        if event["type"] != "ping":
            EVENT.validate_python(event)
    body, kind = sse(events(answer)), {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body, headers=kind))
    client = anthropic.Anthropic(api_key="k", http_client=httpx2.Client(transport=transport))
    with client.messages.stream(model="m", max_tokens=9, messages=[]) as theirs:
        expected = theirs.get_final_message()

    ours = await answer_of(answer, stream=stream)

    blocks = [block.model_dump() for block in expected.content]
    assert ours.text == "".join(block["text"] for block in blocks if block["type"] == "text")
    assert [(call.id, call.name, json.loads(call.arguments)) for call in ours.tool_calls] == [
        (b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"
    ]
    thoughts = [block["thinking"] for block in blocks if block["type"] == "thinking"]
    assert (ours.message.reasoning or "") == "".join(thoughts)
    assert ours.usage.input_tokens == 105
    assert (ours.usage.cached_tokens, ours.usage.cache_write_tokens) == (90, 5)
    assert ours.usage.output_tokens == expected.usage.output_tokens == 7
    assert ours.raw_finish_reason == expected.stop_reason


def test_thoughts_go_back_as_they_came() -> None:
    look = message(thinking("Hm."), text("I look."), use("look", {"at": "a"}), stop="tool_use")
    site = Site(look, message(text("Blue.")))
    ctx = AgentContext.start(site.backend, options=SendOptions(tools=[LOOK], thinking=True))
    answer = ctx.say("Which colour?")
    ctx.ask(Send(messages=[Message.tool(answer.tool_calls[0].id, "blue")]))

    assert site.bodies[1]["messages"][1] == {"role": "assistant", "content": look["content"]}


def test_thoughts_of_another_vendor_stay_here() -> None:
    said = Message.assistant("Oslo.", reasoning="Norway, so:").model_copy(
        update={"origin": Origin(vendor="deepseek", model="m"), "content_blocks": [thinking("x")]}
    )
    body = body_of(Message.user("Capital?"), said, Message.user("Sure?"))

    assert body["messages"][1]["content"] == [text("Oslo.")]


def test_blocks_of_a_message_that_was_edited_are_not_used() -> None:
    blocks = [thinking("Norway, so:"), text("Oslo.")]
    said = Message.assistant("Bergen.").model_copy(
        update={"origin": Origin(vendor="anthropic", model="m"), "content_blocks": blocks}
    )
    body = body_of(Message.user("Capital?"), said, Message.user("Sure?"))

    assert body["messages"][1]["content"] == [text("Bergen.")]


def test_a_streamed_turn_tells_thoughts_and_words() -> None:
    site = Site(ANSWERS["thought"])
    with AgentContext.start(site.backend).ask(SendStream("Capital?")) as stream:
        told = list(stream)

    STREAMED.validate_python(site.bodies[0])
    assert "".join(e.text for e in told if isinstance(e, ReasoningDelta)) == "Norway, so:"
    assert "".join(e.text for e in told if isinstance(e, TextDelta)) == "Oslo."
    assert stream.completion.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("status", "kind", "said", "expected"),
    [
        (401, "authentication_error", "invalid x-api-key", ErrorKind.AUTH),
        (
            429,
            "rate_limit_error",
            "This request would exceed your rate limit",
            ErrorKind.RATE_LIMITED,
        ),
        (529, "overloaded_error", "Overloaded", ErrorKind.OVERLOADED),
        (500, "api_error", "Internal server error", ErrorKind.OVERLOADED),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 208310 tokens > 200000 maximum",
            ErrorKind.CONTEXT_OVERFLOW,
        ),
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API.",
            ErrorKind.QUOTA,
        ),
    ],
)
async def test_errors_say_what_to_do(
    status: int, kind: str, said: str, expected: ErrorKind
) -> None:
    error = {"type": "error", "error": {"type": kind, "message": said}, "request_id": "req_1"}
    backend = Site((status, error)).backend

    with pytest.raises(BackendError, match=said[:20]) as caught:
        await backend.send(request_of(backend, Message.user("hi")))

    assert (caught.value.kind, caught.value.status) == (expected, status)
    if expected is ErrorKind.CONTEXT_OVERFLOW:
        assert (caught.value.needed, caught.value.window) == (208310, 200000)


async def stream_of(*said: dict[str, Any]) -> list[Any]:
    content = sse(list(said))
    backend = AnthropicBackend(
        api_key="k", transport=httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    )
    request = request_of(backend, Message.user("hi"))
    return [event async for event in backend.send_stream(request)]


async def test_an_error_in_a_stream_ends_it() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    with pytest.raises(BackendError, match="Overloaded") as caught:
        await stream_of(*events(ANSWERS["text"])[:4], overloaded)
    assert caught.value.kind is ErrorKind.OVERLOADED


async def test_a_stream_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(BackendError, match="broke off"):
        await stream_of(*events(ANSWERS["calls"])[:8])


@pytest.mark.parametrize(
    ("stop", "kind"),
    [
        ("refusal", ErrorKind.CONTENT_FILTERED),
        ("max_tokens", ErrorKind.EMPTY_RESPONSE),
        ("model_context_window_exceeded", ErrorKind.CONTEXT_OVERFLOW),
    ],
)
async def test_an_answer_without_words_says_why(stop: str, kind: ErrorKind) -> None:
    with pytest.raises(BackendError) as caught:
        await answer_of(message(stop=stop), stream=False)
    assert caught.value.kind is kind


# Any history.


def refuses(messages: list[dict[str, Any]]) -> list[str]:
    """What the API's published rules say against these messages."""
    found: list[str] = []
    roles = [said["role"] for said in messages]
    if roles[:1] != ["user"] or roles[-1:] != ["user"]:
        found.append(f"it begins and ends with the user: {roles}")
    for before, said in pairwise([{"role": "", "content": []}, *messages]):
        blocks = said["content"] if isinstance(said["content"], list) else [text(said["content"])]
        asked = [
            b["id"] for b in before["content"] if isinstance(b, dict) and b["type"] == "tool_use"
        ]
        told = [b["tool_use_id"] for b in blocks if b["type"] == "tool_result"]
        if sorted(asked) != sorted(told):
            found.append(f"results {told} for {asked}")
        if len(set(asked)) < len(asked):
            found.append(f"two calls of one id: {asked}")
        found += [
            f"bad id {b['id']!r}"
            for b in blocks
            if b["type"] == "tool_use" and not b["id"].replace("-", "").replace("_", "").isalnum()
        ]
        found += ["an empty text" for b in blocks if b["type"] == "text" and not b["text"].strip()]
        found += ["nothing is said"] * (not blocks)
    return found


@examples(1)
@given(histories, st.integers(0, 30))
def test_any_history_becomes_a_legal_request_and_the_same_bytes_each_time(
    records: list[StoredMessage], cut: int
) -> None:
    backend = AnthropicBackend(api_key="k")
    known = RequestRenderer()

    def body(count: int, renderer: RequestRenderer) -> bytes:
        zones = Zones(incremental=PersistentVector.of(records[:count]))
        request = Request(
            conversation_id="c", zones=zones, options=SendOptions(model="claude-sonnet-4-6"),
            facts=backend.model_facts(None), rendering=renderer,
        )  # fmt: skip
        return backend._body(request, backend._api_for(request), stream=False)

    for count in sorted({min(cut, len(records)), len(records)}):
        rendered = body(count, known)
        assert rendered == body(count, RequestRenderer())
        sent = json.loads(rendered)
        assert refuses(sent["messages"]) == []
        assert len(marked(sent)) <= 4


def test_a_history_that_begins_with_the_model_gets_a_user_in_front() -> None:
    said = [Message.assistant("Hello!")]
    records = repair_slice([], AnthropicBackend.dialect).records
    assert render_messages(records, AnthropicBackend.dialect, first=True) == []
    body = body_of(*said, Message.user("Hi."))

    assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]


def test_a_turn_costs_what_was_read_written_and_answered() -> None:
    ctx = AgentContext.start(Site(message(text("Oslo."))).backend)

    turn = ctx.say("Capital of Norway?").turn

    assert turn is not None
    assert turn.cost is not None
    expected = 10 * 3.0 + 90 * 0.3 + 5 * 3.75 + 7 * 15.0
    assert turn.cost.amount == pytest.approx(expected / 1_000_000)
