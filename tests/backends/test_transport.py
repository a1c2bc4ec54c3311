"""The transport alone, through httpx."""

import asyncio
import gc
import ssl
from typing import Any

import httpx
import pytest

from agent_context_backends._transport import AiohttpTransport
from tests.support.loops import IoThread
from tests.support.sse_server import CUT, STALL, Reply, SseServer, in_thread, json_reply
from tests.support.waiting import wait_for

pytestmark = pytest.mark.anyio

PLAIN = {"content-type": "text/plain"}


def client(transport: AiohttpTransport, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=transport, trust_env=False, **options)


async def test_method_headers_and_body_arrive_as_given() -> None:
    async with SseServer([json_reply({})]) as server, client(AiohttpTransport()) as http:
        answer = await http.put(f"{server.url}/a%20b?c=%C3%A4", content=b"x", headers={"X-Y": "z"})

    received = server.requests[0]
    assert (received.method, received.path, received.body) == ("PUT", "/a%20b?c=%C3%A4", b"x")
    assert received.headers["x-y"] == "z"
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("size", [0, 1, 5_000_000])
async def test_bodies_of_any_size_go_out(size: int) -> None:
    async with SseServer([json_reply({})]) as server, client(AiohttpTransport()) as http:
        await http.post(server.url, content=b"x" * size)

    assert len(server.requests[0].body) == size


async def test_redirects_and_cookies_are_left_to_httpx() -> None:
    reply = Reply(status=302, headers={"location": "/b", "set-cookie": "a=b"})

    async with SseServer([reply]) as server, client(AiohttpTransport()) as http:
        answer = await http.get(server.url)

    assert answer.status_code == 302
    assert len(server.requests) == 1


async def test_bytes_come_as_they_arrive() -> None:
    go = asyncio.Event()

    async with (
        SseServer([Reply([b"one", go, b"two"], headers=PLAIN)]) as server,
        client(AiohttpTransport()) as http,
        http.stream("GET", server.url) as answer,
    ):
        chunks = answer.aiter_raw()
        first = await anext(chunks)
        go.set()
        rest = [chunk async for chunk in chunks]

    assert (first, rest) == (b"one", [b"two"])


async def test_a_line_may_be_longer_than_any_buffer() -> None:
    async with (
        SseServer([Reply([b"x" * 3_000_000], headers=PLAIN)]) as server,
        client(AiohttpTransport()) as http,
    ):
        answer = await http.get(server.url)

    assert len(answer.content) == 3_000_000


async def test_many_streams_run_at_once() -> None:
    go = asyncio.Event()

    async with (
        SseServer([Reply([b"one", go, b"two"], headers=PLAIN)]) as server,
        client(AiohttpTransport(), timeout=10) as http,
    ):
        gets = [asyncio.create_task(http.get(server.url)) for _ in range(250)]
        await server.received(250)
        go.set()
        answers = await asyncio.gather(*gets)

    assert {answer.content for answer in answers} == {b"onetwo"}
    assert server.connections == 250


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (Reply([STALL]), httpx.ReadTimeout),
        (Reply([b"a", STALL]), httpx.ReadTimeout),
        (Reply([b"a", CUT]), httpx.RemoteProtocolError),
        (Reply([CUT]), httpx.RemoteProtocolError),
        (Reply([], headers={"x": "y\r\n z: \x00"}), httpx.RemoteProtocolError),
    ],
)
async def test_errors_are_those_of_httpx(reply: Reply, error: type[Exception]) -> None:
    async with SseServer([reply]) as server, client(AiohttpTransport(), timeout=0.3) as http:
        with pytest.raises(httpx.TransportError) as caught:
            await http.get(server.url)

    assert isinstance(caught.value, error | httpx.ReadError)
    assert isinstance(caught.value, httpx.TimeoutException) == (error is httpx.ReadTimeout)


async def test_nobody_listening_is_a_connect_error() -> None:
    async with SseServer([]) as server:
        url = server.url

    async with client(AiohttpTransport()) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(url)


async def test_an_unknown_host_is_a_connect_error() -> None:
    async with client(AiohttpTransport()) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("http://nowhere.invalid")


async def test_what_is_no_url_is_an_unsupported_protocol() -> None:
    async with client(AiohttpTransport()) as http:
        with pytest.raises(httpx.UnsupportedProtocol):
            await http.get("http://x:99999")


async def test_an_ssl_context_can_be_given() -> None:
    context = ssl.create_default_context()

    async with (
        SseServer([json_reply({})]) as server,
        client(AiohttpTransport(context=context)) as http,
    ):
        answer = await http.get(server.url)

    assert answer.is_success


def test_connections_of_a_loop_that_runs_elsewhere_are_closed_too() -> None:
    transport = AiohttpTransport()

    async def get(url: str) -> int:
        return (await httpx.AsyncClient(transport=transport, trust_env=False).get(url)).status_code

    with in_thread([json_reply({})]) as server, IoThread() as elsewhere:
        assert elsewhere.run(get(server.url)) == 200

        asyncio.run(transport.aclose())

        wait_for(server.idle)


def test_a_loop_that_is_gone_is_forgotten() -> None:
    transport = AiohttpTransport()

    async def get(url: str) -> int:
        return (await httpx.AsyncClient(transport=transport, trust_env=False).get(url)).status_code

    with in_thread([Reply([b"{}"], headers=PLAIN, chunked=False)]) as server:
        assert asyncio.run(get(server.url)) == 200
        assert asyncio.run(get(server.url)) == 200

    assert len(transport._sessions) == 1
    asyncio.run(transport.aclose())


async def test_a_forgotten_transport_closes_its_connections_quietly() -> None:
    async with SseServer([json_reply({})]) as server:
        await client(AiohttpTransport()).get(server.url)

        gc.collect()

        await asyncio.wait_for(asyncio.to_thread(server.idle.wait), 5)
