"""Any server that speaks chat completions, over httpx: the one place that does model I/O."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, ClassVar, cast

import httpx

from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Completion
from agent_context.options import ModelFacts
from agent_context.records import record_of
from agent_context.stream_events import Finished, StreamEvent
from agent_context.vector import Vector
from agent_context.wire.chat import ChunkReader, completion_of
from agent_context.wire.dialect import Dialect
from agent_context.wire.failures import failure_of, request_id_of
from agent_context.wire.payload import parsed
from agent_context.wire.rendering import Rendering
from agent_context.wire.sse import SseDecoder
from agent_context.zones import Zones
from agent_context_backends._model_names import same_model
from agent_context_backends._parameters import Accepts, ChatFacts, Limits, facts_of, parameters
from agent_context_backends._transport import AiohttpTransport

__all__ = ["Accepts", "ChatCompletionsBackend", "ChatFacts", "Limits"]

_log = logging.getLogger(__name__)

_OURS = frozenset({"messages", "model", "stream"})
"""Fields that `extra` may not set: an answer would be read wrongly."""

_BEHIND = (
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed",
    "stream", "stream_options",
)  # fmt: skip
"""Fields that no prompt cache looks at: they go behind the messages, where they break no prefix."""

_LINGER = 0.05
"""Seconds that the end of a stream may take after `[DONE]`."""

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ChatCompletionsBackend(ContextBackend):
    """A server with the chat-completions API. A subclass says in class attributes what is special.

    Nothing is tried again here; a conversation's turn does that.
    """

    vendor: ClassVar[str] = "compatible"
    default_base_url: ClassVar[str | None] = None
    path: ClassVar[str] = "/chat/completions"
    key_names: ClassVar[Mapping[str, str | None]] = {}
    """Environment variables that may hold the key, each with the base URL that its keys are for.
    If there are any, a key is needed."""
    base_url_names: ClassVar[tuple[str, ...]] = ()
    """Environment variables that may hold the base URL."""
    headers: ClassVar[Mapping[str, str]] = {}
    ends_with_done: ClassVar[bool] = False
    """Whether a stream without `[DONE]` has been cut, even if it gave a finish reason."""
    dialect: ClassVar[Dialect] = Dialect(name="compatible", vendor="compatible")
    default_model: ClassVar[str | None] = None
    aliases: ClassVar[Mapping[str, str]] = {}
    """Names that are documented to be answered by the model of another name."""
    known_models: ClassVar[Mapping[str, ChatFacts]] = {}
    """Facts by model; a name also stands for those that go on with `-`."""
    default_facts: ClassVar[ChatFacts] = ChatFacts(
        context_window=128_000,
        max_output=4_096,
        accepts=Accepts(
            max_output_known=False,
            efforts={effort: {"reasoning_effort": effort} for effort in _EFFORTS},
            advice={"thinking": "say it in the server's own words, in `extra`"},
        ),
    )
    """What is taken for granted of any other model."""

    def __init__(
        self,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        models: Mapping[str, ModelFacts] | None = None,
        connect_timeout: float = 15.0,
        idle_timeout: float = 300.0,
    ) -> None:
        """Only reads the environment; connections come with the first request.

        Args:
            api_key: The key; else one of the environment variables in `key_names`.
            base_url: Where the API is; else from the environment, else the vendor's.
            transport: What carries the requests, `httpx.MockTransport` for one.
            headers: Further headers of every request.
            models: Facts of models that the vendor's table lacks, or has wrong.
            connect_timeout: Seconds until a connection must stand.
            idle_timeout: Seconds of silence after which a stream is given up; comments are no
                silence.
        """
        key, home = self._key(api_key)
        self.base_url = _checked(base_url or self._base_url_of_environment() or home)
        self._url = httpx.URL(self.base_url + self.path)
        self._headers = httpx.Headers(
            {
                "Accept-Encoding": "identity",  # a compressed stream may sit in a buffer
                "Content-Type": "application/json",
                "User-Agent": "agent-context",
                **self.headers,
                **({"Authorization": f"Bearer {key}"} if key else {}),
            }
        )
        self._headers.update(headers)
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._changed: set[tuple[str, str]] = set()
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._unknown = self.adapted(self.default_facts)
        known = {**self.known_models, **(models or {})}
        accepted = self.default_facts.accepts
        self._facts = {
            name: self.adapted(facts_of(facts, accepted)) for name, facts in known.items()
        }

    async def send(self, request: Request) -> Completion:
        """Ask the model and return its whole answer."""
        async with self._answer(request, stream=False) as response:
            body = await response.aread()
            request_id = request_id_of(response.headers)
        try:
            answer = parsed(body)
        except ValueError as error:
            start = body[:80].decode("utf-8", "replace")
            raise self._error(ErrorKind.PROTOCOL, f"its answer is not JSON: {start!r}") from error
        if not isinstance(answer, Mapping):
            raise self._error(ErrorKind.PROTOCOL, "its answer is not an object")
        answer = cast("Mapping[str, Any]", answer)
        completion = completion_of(answer, vendor=self.vendor, request_id=request_id)
        return self._compared(completion, request)

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        """Ask the model and yield what arrives, `Finished` at the end."""
        async with self._answer(request, stream=True) as response:
            reader = ChunkReader(self.vendor, request_id_of(response.headers))
            decoder = _decoder(response)
            async with aclosing(_bytes(response)) as chunks:
                async for data in chunks:
                    for payload in decoder.feed(data):
                        for event in reader.read(payload):
                            yield event
                    if reader.done:
                        await _drain(chunks)
                        break
            for payload in decoder.close():
                for event in reader.read(payload):
                    yield event
        self._check_end(reader, whole=isinstance(decoder, _WholeBody))
        yield Finished(self._compared(reader.finish().completion, request))

    def model_facts(self, model: str | None) -> ChatFacts:
        """What is known of `model`; of an unknown one the vendor's default facts."""
        name = full = model or self.default_model or ""
        while name:
            if (facts := self._facts.get(name)) is not None:
                return facts if name == full else self._facts.setdefault(full, facts)
            name = name.rpartition("-")[0]
        return self._unknown

    async def aclose(self) -> None:
        """Close the connections. A later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def adapted(self, facts: ChatFacts) -> ChatFacts:
        """`facts` as they are at this base URL."""
        return facts

    def dialect_of(self, model: str) -> Dialect:
        """How messages are written for `model`: the dialect, less what it can't see or hear."""
        accepts = self.model_facts(model).accepts
        if accepts.images and accepts.other_parts is None:
            return self.dialect
        images = self.dialect.images and accepts.images
        others = self.dialect.other_parts if accepts.other_parts is None else accepts.other_parts
        return replace(self.dialect, images=images, other_parts=others)

    def is_same_model(self, asked: str, answered: str) -> bool:
        """Whether an answer that names `answered` is by the model that was asked for."""
        return same_model(asked, answered, self.aliases)

    def parameters(self, request: Request, model: str) -> dict[str, Any]:
        """The fields of the request's body that say its options; `extra` is not among them."""
        facts = self.model_facts(model)
        return parameters(request.options, facts, who=f"{self.vendor}'s {model}")

    def prefix_fields(self, request: Request) -> Mapping[str, object]:
        """The fields that stand before the messages."""
        model = request.options.model or self.default_model or ""
        said = {"model": model, **self.parameters(request, model), **request.options.extra}
        return {name: value for name, value in said.items() if name not in _BEHIND}

    async def address(self) -> tuple[httpx.URL, httpx.Headers]:
        """Where requests go, and their headers."""
        return self._url, self._headers

    def _key(self, api_key: str | None) -> tuple[str | None, str | None]:
        """The key and the base URL that it is for."""
        found = next((name for name in self.key_names if os.environ.get(name)), None)
        if api_key is None and found is not None:
            return _clean(os.environ[found], found), self.key_names[found]
        if not api_key and self.key_names:
            names = " or ".join(self.key_names)
            raise InvalidOptions(f"{self.vendor} needs a key: give api_key, or set {names}")
        return _clean(api_key, "api_key") if api_key else None, self.default_base_url

    def _base_url_of_environment(self) -> str | None:
        return next((url for url in map(os.environ.get, self.base_url_names) if url), None)

    def _body(self, request: Request, *, stream: bool) -> bytes:
        if taken := _OURS & request.options.extra.keys():
            raise InvalidOptions(f"extra: {', '.join(sorted(taken))} can't be set there")
        model = request.options.model or self.default_model
        if model is None:
            raise InvalidOptions("which model? Set `model` in the options")
        head: dict[str, Any] = {"model": model, **self.parameters(request, model)}
        if stream:
            head |= {"stream": True, "stream_options": {"include_usage": True}}
        head |= request.options.extra
        foot = {name: head.pop(name) for name in _BEHIND if name in head}
        rendering, zones, trailing = self._said(request)
        try:
            return rendering.body(head, zones, trailing, self.dialect_of(model), foot)
        except TypeError as error:
            raise InvalidOptions(f"an option can't be written as JSON: {error}") from error

    def _compared(self, completion: Completion, request: Request) -> Completion:
        """The completion, which says so if another model answered than was asked for."""
        asked, answered = request.options.model or self.default_model or "", completion.model
        if not answered or self.is_same_model(asked, answered):
            return completion
        if (asked, answered) not in self._changed:
            self._changed.add((asked, answered))
            _log.warning("%s: %s was asked, %s answered", self.vendor, asked, answered)
        return completion.model_copy(update={"model_changed": True})

    def _said(self, request: Request) -> tuple[Rendering, Zones, tuple[Any, ...]]:
        """What is rendered: the request as it is, or what an overridden method made of it."""
        if type(self).to_request_messages is ContextBackend.to_request_messages:
            return request.rendering, request.zones, request.trailing
        records = map(record_of, self.to_request_messages(request))
        return Rendering(), Zones(incremental=Vector.of(records)), ()

    @asynccontextmanager
    async def _answer(self, request: Request, *, stream: bool) -> AsyncGenerator[httpx.Response]:
        content = self._body(request, stream=stream)
        url, headers = await self.address()
        silence = self._idle_timeout if stream else request.options.timeout
        timeout = httpx.Timeout(silence, connect=self._connect_timeout, pool=None)
        call = httpx.Request(
            "POST", url, headers=headers, content=content, extensions={"timeout": timeout.as_dict()}
        )
        try:
            response = await self._opened().send(call, stream=True)
            async with aclosing(response):
                if not response.is_success:
                    raise await self._failure(response)
                yield response
        except httpx.UnsupportedProtocol as error:
            raise InvalidOptions(f"base_url {self.base_url!r}: {error}") from error
        except httpx.HTTPError as error:
            raise self._error(ErrorKind.TRANSPORT, _what_happened(error, silence)) from error

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            transport = self._transport or AiohttpTransport()
            self._client = httpx.AsyncClient(transport=transport, trust_env=False)
        return self._client

    async def _failure(self, response: httpx.Response) -> BackendError:
        body = await response.aread()
        return failure_of(response.status_code, response.headers, body, vendor=self.vendor)

    def _check_end(self, reader: ChunkReader, *, whole: bool) -> None:
        if reader.done or whole or (reader.finished and not self.ends_with_done):
            return
        raise self._error(ErrorKind.TRANSPORT, "its answer broke off before the end")

    def _error(self, kind: ErrorKind, text: str) -> BackendError:
        return BackendError(f"{self.vendor}: {text}", kind=kind, vendor=self.vendor)


class _WholeBody:
    """In the place of an SSE decoder, for servers that answer a stream with one JSON object."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        return []

    def close(self) -> list[bytes]:
        return [b"".join(self._pieces)]


def _decoder(response: httpx.Response) -> SseDecoder | _WholeBody:
    kind = response.headers.get("content-type", "")
    return _WholeBody() if kind.startswith("application/json") else SseDecoder()


def _bytes(response: httpx.Response) -> AsyncGenerator[bytes]:
    """The body as it comes. Both of httpx's iterators are generators, and must be closed."""
    encoded = "content-encoding" in response.headers
    chunks = (
        response.aiter_bytes() if encoded else aiter(cast("httpx.AsyncByteStream", response.stream))
    )
    return cast("AsyncGenerator[bytes]", chunks)


async def _drain(chunks: AsyncGenerator[bytes]) -> None:
    """Read on to the end, which is due at once, so that the connection can be used again."""
    with suppress(TimeoutError, httpx.HTTPError):
        async with asyncio.timeout(_LINGER):
            async for _ in chunks:
                pass


def _what_happened(error: httpx.HTTPError, silence: float) -> str:
    if isinstance(error, httpx.ReadTimeout):
        return f"nothing came for {silence:g} seconds"
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time"
    return str(error) or type(error).__name__


def _checked(base_url: str | None) -> str:
    if not base_url:
        raise InvalidOptions("where is the server? Give base_url")
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise InvalidOptions(f"base_url {base_url!r}: {error}") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidOptions(f"base_url {base_url!r}: an address starts with http:// or https://")
    return base_url.rstrip("/")


def _clean(key: str, name: str) -> str:
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise InvalidOptions(f"{name} is no key: a key is printable ASCII")
    return key
