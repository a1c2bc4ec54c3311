"""An httpx transport over aiohttp: the pool of httpx's own takes quadratic time in its streams."""

from __future__ import annotations

import asyncio
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Self
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from yarl import URL

from agent_context._request_guard import check_request

__all__ = ["AiohttpTransport"]

_PIECE = 256 * 1024
"""Larger bodies go out in pieces of this many bytes, so that none holds up the event loop."""

_Sessions = dict[asyncio.AbstractEventLoop, aiohttp.ClientSession]


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Sends requests of httpx through aiohttp, with no limit on connections.

    Bytes come as they arrive, still compressed if the server compressed them. Any event loop may
    use it: each has its own connections. Closing a response before its end closes its socket.
    """

    def __init__(self, *, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._proxies = getproxies()
        self._sessions: _Sessions = {}
        self._finalizer = weakref.finalize(self, _abandon, self._sessions)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request; return when the headers of its answer are there."""
        check_request(request.url.copy_with(query=None, userinfo=b""))
        body = await request.aread()
        try:
            response = await self._session().request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=_headers(request),
                data=_pieces(body) if len(body) > _PIECE else body or None,
                timeout=_timeout(request),
                proxy=self._proxy(request.url),
                allow_redirects=False,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _as_httpx(error, request) from error
        return httpx.Response(
            response.status,
            headers=response.raw_headers,
            stream=_Stream(response, request),
            request=request,
        )

    async def aclose(self) -> None:
        """Close all connections, those of other event loops too."""
        here = asyncio.get_running_loop()
        mine = self._sessions.pop(here, None)
        _abandon(self._sessions)
        if mine is not None:
            await mine.close()

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            _prune_closed(self._sessions)
            session = self._sessions[loop] = self._connect()
        return session

    def _proxy(self, url: httpx.URL) -> str | None:
        """The proxy that the environment asks for."""
        proxy = self._proxies.get(url.scheme) or self._proxies.get("all")
        return None if not proxy or proxy_bypass(url.host) else proxy

    def _connect(self) -> aiohttp.ClientSession:
        if self._context is None:
            self._context = httpx.create_ssl_context()
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._context),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
        )


class _Stream(httpx.AsyncByteStream):
    """The body of an answer. An iterator of its own, so that nothing is left to be finalised."""

    def __init__(self, response: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise _as_httpx(error, self._request) from error
        if not data:
            raise StopAsyncIteration
        return data

    async def aclose(self) -> None:
        # Closes the socket, unless the whole body has come: then it is back in the pool already.
        self._response.close()


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _PIECE):
        yield body[start : start + _PIECE]


def _headers(request: httpx.Request) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode("latin-1")) for name, value in request.headers.raw]


def _timeout(request: httpx.Request) -> aiohttp.ClientTimeout:
    limits: dict[str, float | None] = request.extensions.get("timeout", {})
    return aiohttp.ClientTimeout(
        total=None, sock_connect=limits.get("connect"), sock_read=limits.get("read")
    )


def _as_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """What httpx would raise in the place of aiohttp's error."""
    kind = next(ours for theirs, ours in _KINDS if isinstance(error, theirs))
    # Without the address, which may hold a key.
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return kind(text or type(error).__name__, request=request)


_KINDS: tuple[tuple[type[Exception], type[httpx.TransportError]], ...] = (
    (aiohttp.InvalidURL, httpx.UnsupportedProtocol),
    (aiohttp.NonHttpUrlClientError, httpx.UnsupportedProtocol),
    (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
    (TimeoutError, httpx.ReadTimeout),
    (aiohttp.ClientProxyConnectionError, httpx.ProxyError),
    (aiohttp.ClientHttpProxyError, httpx.ProxyError),
    (aiohttp.ClientConnectorError, httpx.ConnectError),
    (aiohttp.ServerDisconnectedError, httpx.RemoteProtocolError),
    (aiohttp.ClientPayloadError, httpx.RemoteProtocolError),
    (aiohttp.ClientResponseError, httpx.RemoteProtocolError),
    (ssl.SSLError, httpx.ConnectError),
    (ValueError, httpx.UnsupportedProtocol),  # of yarl: not a URL
    (Exception, httpx.ReadError),
)
"""The first that fits. aiohttp's timeouts are `TimeoutError`s, and those `OSError`s."""


def _prune_closed(sessions: _Sessions) -> None:
    for loop in [loop for loop in sessions if loop.is_closed()]:
        _disconnect(loop, sessions.pop(loop))


def _abandon(sessions: _Sessions) -> None:
    """Close sessions whose loops run elsewhere, or nowhere any more."""
    while sessions:
        _disconnect(*sessions.popitem())


def _disconnect(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
    connector = session.connector
    session.detach()  # or its deletion would complain on stderr
    if connector is None:
        return
    try:
        loop.call_soon_threadsafe(_close, connector)
    except RuntimeError:  # the loop is closed: there is nothing to wait for
        closing = connector.close().__await__()
        with suppress(StopIteration, RuntimeError):
            next(closing)


_closing: set[asyncio.Task[None]] = set()


def _close(connector: aiohttp.BaseConnector) -> None:
    async def close() -> None:
        await connector.close()

    task = asyncio.get_running_loop().create_task(close())
    _closing.add(task)
    task.add_done_callback(_closing.discard)
