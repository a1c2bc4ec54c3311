"""The adapter over a real socket, against a server that misbehaves as told."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any, ClassVar, cast

import httpx
import pytest

from agent_context.backend import Request
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import FinishReason, Message, Usage
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamEvent, TextDelta
from agent_context.testing import request_of
from agent_context_backends.chat_completions import (
    ChatCompletionsBackend,
    ChatFacts,
    ParameterSupport,
)
from agent_context_backends.deepseek import DeepSeekBackend
from tests.support.mock import OK, Recorded, sent
from tests.support.sse_server import CUT, STALL, Reply, SseServer, answer, json_reply, sse
from tests.wire.fixtures import payload

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def delta(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"model": "m", "choices": [{"delta": {"content": text}, "finish_reason": reason}]}


class Backend(ChatCompletionsBackend):
    default_model: ClassVar[str | None] = "m"


def asked(backend: ChatCompletionsBackend, **options: Any) -> Request:
    return request_of(backend, Message.user("q"), options=SendOptions(**options))


def stream_of(backend: ChatCompletionsBackend) -> AsyncGenerator[StreamEvent]:
    return cast("AsyncGenerator[StreamEvent]", backend.send_stream(asked(backend)))


async def streamed(backend: ChatCompletionsBackend) -> list[StreamEvent]:
    try:
        return [event async for event in stream_of(backend)]
    finally:
        await backend.aclose()


async def broken(backend: ChatCompletionsBackend) -> tuple[list[StreamEvent], BackendError]:
    """What arrived, and what went wrong then."""
    events: list[StreamEvent] = []
    try:
        async for event in stream_of(backend):
            events.append(event)  # noqa: PERF401 - what comes before the error is wanted
    except BackendError as error:
        return events, error
    finally:
        await backend.aclose()
    raise AssertionError("nothing went wrong")


async def test_a_stream_arrives_as_events() -> None:
    async with SseServer([answer("He", "llo", usage=USAGE)]) as server:
        events = await streamed(Backend(base_url=server.url))

    assert events[:2] == [TextDelta("He"), TextDelta("llo")]
    assert isinstance(events[-1], Finished)
    completion = events[-1].completion
    assert completion.message.text == "Hello"
    assert completion.usage == Usage(input_tokens=3, output_tokens=2)
    body = server.requests[0].json
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert list(body) == ["model", "messages", "stream", "stream_options"]


@pytest.mark.parametrize("size", [1, 2, 7])
async def test_a_stream_may_be_cut_anywhere(size: int) -> None:
    whole = b"".join(sse(delta("„中😀“"), delta("", "stop"))).replace(b"\n", b"\r\n")
    steps = [whole[i : i + size] for i in range(0, len(whole), size)]

    async with SseServer([Reply(steps)]) as server:
        events = await streamed(Backend(base_url=server.url))

    assert events[0] == TextDelta("„中😀“")
    assert isinstance(events[-1], Finished)


async def test_a_whole_answer_arrives_after_blank_lines() -> None:
    blank = payload("ds-blank-lines-nonstream").encode()
    headers = {"content-type": "application/json", "x-request-id": "r1"}

    async with SseServer([Reply([b"\n", b"\n", blank], headers=headers)]) as server:
        backend = Backend(base_url=server.url)
        completion = await backend.send(asked(backend))
        await backend.aclose()

    assert completion.message.text == "ok"
    assert completion.request_id == "r1"
    assert "stream" not in server.requests[0].json


async def test_a_server_may_answer_a_stream_with_one_object() -> None:
    async with SseServer([json_reply(OK)]) as server:
        events = await streamed(Backend(base_url=server.url))

    assert events[0] == TextDelta("ok")
    assert isinstance(events[-1], Finished)


async def test_the_connection_is_used_again() -> None:
    async with SseServer([answer("a")]) as server:
        backend = Backend(base_url=server.url)
        for _ in range(3):
            async for _event in stream_of(backend):
                pass
        await backend.aclose()

    assert len(server.requests) == 3
    assert server.connections == 1


async def test_closing_a_stream_closes_its_connection() -> None:
    async with SseServer([Reply([*sse(delta("a"), done=False), STALL])]) as server:
        backend = Backend(base_url=server.url)
        stream = stream_of(backend)
        assert await anext(stream) == TextDelta("a")

        await stream.aclose()

        await asyncio.wait_for(server.disconnected.wait(), 5)
        await backend.aclose()


async def test_cancelling_a_stream_closes_its_connection() -> None:
    async with SseServer([Reply([*sse(delta("a"), done=False), STALL])]) as server:
        backend = Backend(base_url=server.url)
        first = asyncio.Event()

        async def consume() -> None:
            async for _ in stream_of(backend):
                first.set()

        task = asyncio.create_task(consume())
        await first.wait()
        task.cancel()

        await asyncio.wait_for(server.disconnected.wait(), 5)
        with pytest.raises(asyncio.CancelledError):
            await task
        await backend.aclose()


async def test_silence_is_given_up() -> None:
    async with SseServer([Reply([*sse(delta("a"), done=False), STALL])]) as server:
        events, error = await broken(Backend(base_url=server.url, idle_timeout=0.2))
        await asyncio.wait_for(server.disconnected.wait(), 5)

    assert events == [TextDelta("a")]
    assert (error.kind, error.retryable) == (ErrorKind.TRANSPORT, True)
    assert "0.2 seconds" in str(error)


async def test_comments_are_no_silence() -> None:
    comments = [step for _ in range(8) for step in (0.1, b": keep-alive\n\n")]
    steps = [*comments, *sse(delta("a"), delta("", "stop"))]

    async with SseServer([Reply(steps)]) as server:
        events = await streamed(Backend(base_url=server.url, idle_timeout=0.4))

    assert events[0] == TextDelta("a")


@pytest.mark.parametrize("chunked", [True, False])
async def test_an_end_without_done_is_an_error(*, chunked: bool) -> None:
    reply = Reply(sse(delta("a"), done=False), chunked=chunked)

    async with SseServer([reply]) as server:
        events, error = await broken(Backend(base_url=server.url))

    assert events == [TextDelta("a")]
    assert (error.kind, error.retryable) == (ErrorKind.TRANSPORT, True)


@pytest.mark.parametrize("backend", [Backend, DeepSeekBackend])
async def test_an_end_after_a_finish_reason_is_one_but_for_deepseek(
    backend: type[ChatCompletionsBackend],
) -> None:
    reply = Reply(sse(delta("a"), delta("", "stop"), done=False))

    async with SseServer([reply]) as server:
        made = backend(api_key="k", base_url=server.url)
        if backend is DeepSeekBackend:
            _, error = await broken(made)
            assert error.kind is ErrorKind.TRANSPORT
        else:
            assert isinstance((await streamed(made))[-1], Finished)


async def test_a_cut_connection_is_an_error() -> None:
    async with SseServer([Reply([*sse(delta("a"), done=False), CUT])]) as server:
        events, error = await broken(Backend(base_url=server.url))

    assert events == [TextDelta("a")]
    assert (error.kind, error.retryable) == (ErrorKind.TRANSPORT, True)


async def test_an_error_in_the_stream_is_raised_after_what_came_before() -> None:
    steps = sse(delta("a"), {"error": {"message": "no", "code": "context_length_exceeded"}})

    async with SseServer([Reply(steps)]) as server:
        events, error = await broken(Backend(base_url=server.url))

    assert events == [TextDelta("a")]
    assert error.kind is ErrorKind.CONTEXT_OVERFLOW


async def test_an_empty_stream_is_an_error_to_retry() -> None:
    async with SseServer([Reply(sse(delta(""), delta("", "stop")))]) as server:
        _, error = await broken(Backend(base_url=server.url))

    assert (error.kind, error.retryable) == (ErrorKind.EMPTY_RESPONSE, True)


async def test_a_refused_request_says_all_that_is_known() -> None:
    said = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}
    reply = json_reply(said, status=429, headers={"retry-after": "7", "x-request-id": "r9"})

    async with SseServer([reply]) as server:
        _, error = await broken(Backend(base_url=server.url))

    assert (error.kind, error.status, error.code) == (
        ErrorKind.RATE_LIMITED,
        429,
        "rate_limit_exceeded",
    )
    assert (error.retry_after, error.request_id, error.vendor) == (7.0, "r9", "compatible")
    assert len(server.requests) == 1


async def test_nobody_listening_is_an_error_to_retry() -> None:
    async with SseServer([]) as server:
        url = server.url

    _, error = await broken(Backend(base_url=url))

    assert (error.kind, error.retryable) == (ErrorKind.TRANSPORT, True)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"3", b'{"choices": []}', b""])
async def test_an_answer_that_is_none_is_an_error(body: bytes) -> None:
    backend = Backend(base_url="http://x", transport=Recorded(body))

    with pytest.raises(BackendError) as caught:
        await backend.send(asked(backend))

    assert caught.value.kind is ErrorKind.PROTOCOL


async def test_a_large_request_goes_out_whole() -> None:
    text = "ä" * 1_000_000

    async with SseServer([json_reply(OK)]) as server:
        backend = Backend(base_url=server.url)
        await backend.send(request_of(backend, Message.user(text)))
        await backend.aclose()

    assert server.requests[0].json["messages"][0]["content"] == text


async def test_a_closed_backend_opens_again() -> None:
    async with SseServer([json_reply(OK)]) as server:
        backend = Backend(base_url=server.url)
        await backend.send(asked(backend))
        await backend.aclose()
        completion = await backend.send(asked(backend))
        await backend.aclose()

    assert completion.finish_reason is FinishReason.STOP


async def test_the_next_request_begins_with_the_bytes_of_the_last() -> None:
    transport = Recorded()
    backend = Backend(base_url="http://x", transport=transport)
    first = asked(backend)
    longer = request_of(backend, Message.user("q"), Message.assistant("a"), Message.user("r"))

    await backend.send(first)
    await backend.send(longer)

    short, long = (request.content for request in transport.requests)
    assert long.startswith(short.removesuffix(b"]}"))


async def test_a_compressed_answer_is_read() -> None:
    import gzip

    body = gzip.compress(b"".join(sse(delta("a"), delta("", "stop"))))
    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}

    async with SseServer([Reply([body[:20], body[20:]], headers=headers)]) as server:
        events = await streamed(Backend(base_url=server.url))

    assert events[0] == TextDelta("a")


async def test_a_user_may_change_what_is_sent() -> None:
    class Shouting(Backend):
        def to_request_messages(self, request: Request) -> tuple[Message, ...]:
            return tuple(
                self.user_message(message.text.upper())
                for message in super().to_request_messages(request)
            )

    transport = Recorded()

    body = await sent(Shouting(base_url="http://x", transport=transport), transport)

    assert body["messages"] == [{"role": "user", "content": "Q"}]


async def test_a_user_may_add_a_model() -> None:
    accepts = ParameterSupport(max_tokens="max_new", seed=False)
    mine = ChatFacts(context_window=9_000, max_output=900, accepts=accepts)
    plain = ModelFacts(context_window=8_000, max_output=800)
    transport = Recorded()
    backend = Backend(
        base_url="http://x", transport=transport, models={"mine": mine, "plain": plain}
    )

    body = await sent(backend, transport, model="mine", max_tokens=3)

    assert body["max_new"] == 3
    assert backend.model_facts("mine-2026").max_output == 900
    assert backend.model_facts("plain").context_window == 8_000
    with pytest.raises(InvalidOptions, match="no seed"):
        await sent(backend, transport, model="mine", seed=1)


async def test_headers_can_be_added_and_replaced() -> None:
    transport = Recorded()
    headers = {"X-Team": "a", "Authorization": "Basic b"}
    backend = Backend(base_url="http://x/", api_key="k", headers=headers, transport=transport)

    await sent(backend, transport)

    request = transport.requests[0]
    assert (request.headers["x-team"], request.headers["authorization"]) == ("a", "Basic b")
    assert str(request.url) == "http://x/chat/completions"


async def test_a_local_server_needs_no_key() -> None:
    transport = Recorded()

    await sent(Backend(base_url="http://x", transport=transport), transport)

    assert "authorization" not in transport.requests[0].headers


async def test_a_server_of_many_models_must_be_told_which() -> None:
    transport = Recorded()

    with pytest.raises(InvalidOptions, match="which model"):
        await sent(ChatCompletionsBackend(base_url="http://x", transport=transport), transport)


@pytest.mark.parametrize("url", [None, "", "localhost:80", "ftp://x", "http://", "/v1"])
def test_an_address_must_be_one(url: str | None) -> None:
    with pytest.raises(InvalidOptions):
        Backend(base_url=url)


@pytest.mark.parametrize("key", ["  ", "a\nb", "ключ"])
def test_a_key_must_be_one(key: str) -> None:
    with pytest.raises(InvalidOptions):
        Backend(base_url="http://x", api_key=key)


def test_nothing_shows_the_key() -> None:
    backend = Backend(base_url="http://x", api_key="sk-secret")

    assert "sk-secret" not in repr(backend)


def test_each_event_loop_has_its_own_connections() -> None:
    from tests.support.sse_server import in_thread

    with in_thread([json_reply(OK)]) as server:
        backend = Backend(base_url=server.url)

        async def send() -> str:
            completion = await backend.send(asked(backend))
            await backend.aclose()
            return completion.message.text

        assert [asyncio.run(send()) for _ in range(2)] == ["ok", "ok"]


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with SseServer([json_reply(OK)]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        backend = Backend(base_url="http://nowhere.invalid")
        await backend.send(asked(backend))
        await backend.aclose()

    assert proxy.requests[0].path == "http://nowhere.invalid/chat/completions"


async def test_what_httpx_cannot_send_is_a_transport_error() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    backend = Backend(base_url="http://x", transport=httpx.MockTransport(fail))

    with pytest.raises(BackendError, match="refused") as caught:
        await backend.send(asked(backend))

    assert caught.value.kind is ErrorKind.TRANSPORT


async def test_scratch_goes_last() -> None:
    async with SseServer([json_reply(OK)]) as server:
        backend = Backend(base_url=server.url)
        request = asked(backend)
        from dataclasses import replace

        from agent_context._context.stored_message import from_message

        trailing = (from_message(Message.system("It is 12:00.")),)
        await backend.send(replace(request, trailing=trailing))
        await backend.aclose()

    assert json.loads(server.requests[0].body)["messages"][-1]["content"] == "It is 12:00."


@pytest.mark.parametrize(
    ("asked_for", "answered", "changed"),
    [
        ("m", "m", False),
        ("m", "", False),
        ("gpt-5.4", "gpt-5.4-2026-03-05", False),
        ("qwen3-max", "qwen3-max-0923", False),
        ("Qwen3:latest", "qwen3", False),
        ("openai/gpt-5:free", "openai/gpt-5", False),
        ("old", "new", False),
        ("gpt-5.4", "gpt-5.4-mini", True),
        ("gpt-5.4-2026-03-05", "gpt-5.4-2026-09-01", True),
        ("qwen3:8b", "qwen3:4b", True),
        ("deepseek-chat", "deepseek-flash", True),
    ],
)
async def test_another_model_s_answer_is_told(
    asked_for: str, answered: str, changed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Renaming(ChatCompletionsBackend):
        aliases: ClassVar[Mapping[str, str]] = {"old": "new"}

    reply = {**OK, "model": answered}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=reply))
    backend = Renaming(base_url="http://x", transport=transport)

    whole = await backend.send(asked(backend, model=asked_for))
    last = [event async for event in backend.send_stream(asked(backend, model=asked_for))][-1]

    assert isinstance(last, Finished)
    assert whole.model_changed is last.completion.model_changed is changed
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [record.getMessage() for record in told] == (
        [f"compatible: {asked_for} was asked, {answered} answered"] if changed else []
    )


async def test_what_leaked_is_stored_and_stays_here() -> None:
    leaked = {**OK, "choices": [{"message": {"content": "<｜DSML｜ calls>"}}]}
    server = Recorded(leaked)
    backend = DeepSeekBackend(api_key="k", transport=server)

    message = (await backend.send(asked(backend))).message
    body = await sent(backend, server, Message.user("q"), message)

    assert message.leaked_markup
    assert backend.message_from_json(backend.message_to_json(message)) == message
    assert body["messages"][1] == {"role": "assistant", "content": "<｜DSML｜ calls>"}


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://x/v1", "http://x/v1/chat/completions"),
        ("http://x/v1/ ", "http://x/v1/chat/completions"),
        ("http://x/v1/chat/completions", "http://x/v1/chat/completions"),
        ("http://x/v1/chat/completions/", "http://x/v1/chat/completions"),
        ("http://x/v1/responses", "http://x/v1/chat/completions"),
        ("http://x/v1?api-version=2", "http://x/v1/chat/completions?api-version=2"),
        ("http://x/v1/?a=/b/&c=", "http://x/v1/chat/completions?a=/b/&c="),
        ("http://x/v1/chat/completions?a=1#f", "http://x/v1/chat/completions?a=1"),
    ],
)
async def test_a_base_url_may_have_a_query_and_name_the_endpoint(base_url: str, url: str) -> None:
    transport = Recorded()
    backend = Backend(base_url=base_url, transport=transport)

    await backend.send(asked(backend))

    assert str(transport.requests[0].url) == url


@pytest.mark.parametrize("base_url", ["ftp://me:secret@x/v1", "me:secret@x", "http://:secret@"])
def test_a_refused_base_url_shows_no_secret(base_url: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        Backend(base_url=base_url + "?key=secret")

    assert "secret" not in str(caught.value)
    assert "base_url" in str(caught.value)
