"""Any server that speaks chat completions, or the Responses API, over httpx.

This is the one place that does model I/O.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar, cast, get_args

import httpx

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zones
from agent_context._runtime import io_loop
from agent_context._trace_headers import trace_headers
from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Completion, Message
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import Finished, StreamEvent
from agent_context.wire.dialect import Dialect
from agent_context.wire.errors import error_from_response, request_id_of
from agent_context.wire.lenient_json import loads_lenient
from agent_context.wire.rendering import RequestRenderer
from agent_context.wire.responses import parse_completion, parse_event
from agent_context.wire.sse import ResponseTooLong
from agent_context_backends._body_stream import (
    BodyDecoder,
    bytes_of,
    drain,
    read_body,
    read_start,
)
from agent_context_backends._credentials import Address, check_url, clean_key
from agent_context_backends._endpoints import CHAT, RESPONSES, Api, ApiChoice, Reader, merge_fields
from agent_context_backends._model_names import same_model
from agent_context_backends._request_fields import (
    ChatFacts,
    ParameterSupport,
    SamplingLimits,
    as_responses,
    item_parameters,
    parameters,
    refuses_tools,
    response_formats,
    to_chat_facts,
)
from agent_context_backends._transport import AiohttpTransport

__all__ = [
    "ApiChoice",
    "ChatCompletionsBackend",
    "ChatFacts",
    "ParameterSupport",
    "SamplingLimits",
    "as_responses",
]

_log = logging.getLogger(__name__)

_BEHIND = (
    "max_tokens", "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "stop",
    "seed", "stop_sequences", "stream", "stream_options",
)  # fmt: skip
"""Fields that no prompt cache looks at: they go behind the messages, where they break no prefix."""

_ELSEWHERE = re.compile(
    r"function tools with reasoning_effort.*/v1/responses", re.IGNORECASE | re.DOTALL
)
"""How chat completions say that they don't take this request, and the Responses API does
(openai/openai-openapi#541, 2026)."""

_HEADERS = {
    "Accept-Encoding": "identity",  # a compressed stream may sit in a buffer
    "Content-Type": "application/json",
    "User-Agent": "context-actor",
}

_FEW = 100
"""Messages that are rendered on the loop; more would hold up every other stream."""

_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


class ChatCompletionsBackend(ContextBackend):
    """A server with the chat-completions API. A subclass says in class attributes what is special.

    Nothing is tried again here, a conversation's turn does that; except that a request which the
    server says belongs to the Responses API is asked there, and so are that model's later ones.
    """

    vendor: ClassVar[str] = "compatible"
    default_base_url: ClassVar[str | None] = None
    path: ClassVar[str] = "/chat/completions"
    responses_path: ClassVar[str] = "/responses"
    messages_path: ClassVar[str] = "/messages"
    responses_base_urls: ClassVar[Mapping[str, str]] = {}
    """For base URLs whose Responses API has another, that one."""
    key_names: ClassVar[Mapping[str, str | None]] = {}
    """Environment variables that may hold the key, each with the base URL that its keys are for.
    If there are any, a key is needed."""
    base_url_names: ClassVar[tuple[str, ...]] = ()
    """Environment variables that may hold the base URL."""
    headers: ClassVar[Mapping[str, str]] = {}
    ends_with_done: ClassVar[bool] = False
    """Whether a stream without `[DONE]` has been cut, even if it gave a finish reason."""
    dialect: ClassVar[Dialect] = Dialect(name="compatible", vendor="compatible")
    responses_dialect: ClassVar[Dialect] = Dialect(
        name="compatible-responses",
        vendor="compatible",
        api="responses",
        max_call_id=64,
        unique_call_ids=True,
    )
    default_model: ClassVar[str | None] = None
    aliases: ClassVar[Mapping[str, str]] = {}
    """Names that are documented to be answered by the model of another name."""
    known_models: ClassVar[Mapping[str, ChatFacts]] = {}
    """Facts by model; a name also stands for those that go on with `-`."""
    default_facts: ClassVar[ChatFacts] = ChatFacts(
        context_window=128_000,
        max_output=4_096,
        accepts=ParameterSupport(
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
        api: ApiChoice = "auto",
        transport: httpx.AsyncBaseTransport | None = None,
        headers: Mapping[str, str] | None = None,
        models: Mapping[str, ModelFacts] | None = None,
        connect_timeout: float = 15.0,
        idle_timeout: float = 300.0,
    ) -> None:
        """Only reads the environment; connections come with the first request.

        Args:
            api_key: The key; else one of the environment variables in `key_names`.
            base_url: Where the API is; else from the environment, else the vendor's. A query goes
                with every request, and the name of an endpoint at its end counts for nothing.
            api: Which API to speak; `auto` takes chat completions for everything that they do.
            transport: What carries the requests, `httpx.MockTransport` for one.
            headers: Further headers of every request.
            models: Facts of models that the vendor's table lacks, or has wrong.
            connect_timeout: Seconds until a connection must stand.
            idle_timeout: Seconds of silence after which a stream is given up; comments are no
                silence.
        """
        key, home = self._key(api_key)
        address = check_url(base_url or self._base_url_of_environment() or home)
        self.base_url = address.base
        self._urls = self._urls_at(address)
        if api not in get_args(ApiChoice):
            raise InvalidOptions(f"api is one of {', '.join(get_args(ApiChoice))}, not {api!r}")
        self._api: ApiChoice = api
        self._responses_models: set[str] = set()
        self._headers = httpx.Headers({**_HEADERS, **self.headers})
        self._headers.update(self.key_headers(key) if key else {})
        self._headers.update(headers)
        self._transport = transport
        self._opened_transport: httpx.AsyncBaseTransport | None = None
        self._changed: set[tuple[str, str]] = set()
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._unknown = self.facts_for_base_url(self.default_facts)
        known = {**self.known_models, **(models or {})}
        self._facts = {
            name: self.facts_for_base_url(to_chat_facts(facts, self.default_facts))
            for name, facts in known.items()
        }

    async def send(self, request: Request) -> Completion:
        """Ask the model and return its whole answer."""
        async with self._answer(request, stream=False) as (api, response):
            body = await read_body(response, request.options.timeout)
            request_id = request_id_of(response.headers)
            decoder = BodyDecoder()
            payloads = [*decoder.feed(body), *decoder.close()]
        if decoder.whole:
            answer = self._json(payloads[0])
            completion = api.completion_of(answer, vendor=self.vendor, request_id=request_id)
        elif payloads:  # a stream, though none was asked for
            reader = api.reader(self.vendor, request_id)
            for payload in payloads:
                reader.read(payload)
            self._check_end(reader, api, whole=False)
            completion = reader.finish().completion
        else:
            raise self._no_json(body)
        return self._check_model(completion, request)

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        """Ask the model and yield what arrives, `Finished` at the end."""
        async with self._answer(request, stream=True) as (api, response):
            reader = api.reader(self.vendor, request_id_of(response.headers))
            decoder = BodyDecoder()
            async with aclosing(bytes_of(response, self._idle_timeout)) as chunks:
                async for data in chunks:
                    for payload in decoder.feed(data):
                        for event in reader.read(payload):
                            yield event
                    if reader.done:
                        await drain(chunks)
                        break
            for payload in decoder.close():
                for event in reader.read(payload):
                    yield event
        self._check_end(reader, api, whole=decoder.whole)
        yield Finished(self._check_model(reader.finish().completion, request))

    def model_facts(self, model: str | None) -> ChatFacts:
        """What is known of `model`; of an unknown one the vendor's default facts."""
        name = full = model or self.default_model or ""
        while name:
            if (facts := self._facts.get(name)) is not None:
                return facts if name == full else self._facts.setdefault(full, facts)
            name = name.rpartition("-")[0]
        return self._unknown

    def response_formats(self, options: SendOptions) -> frozenset[str]:
        facts = self.model_facts(options.model)
        there = facts.responses if self._api == "responses" else None
        return response_formats(options, replace(facts, accepts=there or facts.accepts))

    def extract_messages(self, response: Mapping[str, Any]) -> tuple[Message, ...]:
        """The messages in a whole answer as either API sent it."""
        if "output" not in response:
            return super().extract_messages(response)
        return (parse_completion(response, vendor=self.vendor).message,)

    def classify_chunk(self, chunk: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
        """What one chunk, or event, of a streamed answer means on its own."""
        return parse_event(chunk) if "type" in chunk else super().classify_chunk(chunk)

    async def aclose(self) -> None:
        """Close the connections. A later request opens new ones."""
        transport, self._opened_transport = self._opened_transport, None
        if transport is not None:
            await transport.aclose()

    def key_headers(self, key: str) -> Mapping[str, str]:
        """The headers that say the key."""
        return {"Authorization": f"Bearer {key}"}

    def split_system(self, zones: Zones) -> tuple[Mapping[str, Any], Zones]:
        """What the request's own fields say of `zones`, and what of them is said as messages."""
        return {}, zones

    def facts_for_base_url(self, facts: ChatFacts) -> ChatFacts:
        """`facts` as they are at this base URL."""
        return facts

    def dialect_for(self, model: str, api: Api = CHAT) -> Dialect:
        """How messages are written for `model`: the dialect, less what it can't see or hear."""
        dialect = self.responses_dialect if api is RESPONSES else self.dialect
        accepts = self.model_facts(model).accepts
        if accepts.images and accepts.other_parts is None:
            return dialect
        images = dialect.images and accepts.images
        others = dialect.other_parts if accepts.other_parts is None else accepts.other_parts
        return replace(dialect, images=images, other_parts=others)

    def is_same_model(self, asked: str, answered: str) -> bool:
        """Whether an answer that names `answered` is by the model that was asked for."""
        return same_model(asked, answered, self.aliases)

    def parameters(self, request: Request, model: str, api: Api = CHAT) -> dict[str, Any]:
        """The fields of the request's body that say its options; `extra` is not among them."""
        say = parameters if api is CHAT else item_parameters
        return say(request.options, self.model_facts(model), who=f"{self.vendor}'s {model}")

    def prefix_fields(self, request: Request) -> Mapping[str, object]:
        """The fields that stand before the messages, and which API they are for."""
        api = self._api_for(request)
        model = request.options.model or self.default_model or ""
        head = {"model": model, **self.parameters(request, model, api)}
        said = {"api": api.name, **merge_fields(head, request.options.extra)}
        return {name: value for name, value in said.items() if name not in _BEHIND}

    async def address(self, api: Api = CHAT) -> tuple[httpx.URL, httpx.Headers]:
        """Where requests go, and their headers."""
        return self._urls[api.name], self._headers

    def _key(self, api_key: str | None) -> tuple[str | None, str | None]:
        """The key and the base URL that it is for."""
        found = next((name for name in self.key_names if os.environ.get(name)), None)
        if api_key is None and found is not None:
            return clean_key(os.environ[found], found), self.key_names[found]
        if not api_key and self.key_names:
            names = " or ".join(self.key_names)
            raise InvalidOptions(f"{self.vendor} needs a key: give api_key, or set {names}")
        return clean_key(api_key, "api_key") if api_key else None, self.default_base_url

    def _urls_at(self, address: Address) -> Mapping[str, httpx.URL]:
        """The endpoint of each API."""
        items = self.responses_base_urls.get(address.base)
        return {
            "chat": address.url(self.path),
            "responses": address.url(self.responses_path, base=items),
            "messages": address.url(self.messages_path),
        }

    def _base_url_of_environment(self) -> str | None:
        return next((url for url in map(os.environ.get, self.base_url_names) if url), None)

    def _model(self, request: Request) -> str:
        model = request.options.model or self.default_model
        if model is None:
            raise InvalidOptions("which model? Set `model` in the options")
        return model

    def _api_for(self, request: Request) -> Api:
        """The API that is asked. It depends on the options alone, so that a prefix stays cached."""
        if self._api != "auto":
            return RESPONSES if self._api == "responses" else CHAT
        model = self._model(request)
        facts = self.model_facts(model)
        better = facts.responses is not None and refuses_tools(request.options, facts)
        return RESPONSES if better or model in self._responses_models else CHAT

    def _body(self, request: Request, api: Api, *, stream: bool) -> bytes:
        extra = request.options.extra
        if taken := api.ours & extra.keys():
            raise InvalidOptions(f"extra: {', '.join(sorted(taken))} can't be set there")
        model = self._model(request)
        head: dict[str, Any] = {"model": model, **self.parameters(request, model, api)}
        if stream:
            head |= api.streaming
        head = merge_fields(head, extra)
        foot = {name: head.pop(name) for name in _BEHIND if name in head}
        rendering, zones, trailing = self._fields(request)
        system, zones = self.split_system(zones)
        head |= system
        try:
            return rendering.body(head, zones, trailing, self.dialect_for(model, api), foot)
        except TypeError as error:
            raise InvalidOptions(f"an option can't be written as JSON: {error}") from error

    def _check_model(self, completion: Completion, request: Request) -> Completion:
        """The completion, which says so if another model answered than was asked for."""
        asked, answered = request.options.model or self.default_model or "", completion.model
        if not answered or self.is_same_model(asked, answered):
            return completion
        if (asked, answered) not in self._changed:
            self._changed.add((asked, answered))
            _log.warning("%s: %s was asked, %s answered", self.vendor, asked, answered)
        return completion.model_copy(update={"model_changed": True})

    def _fields(self, request: Request) -> tuple[RequestRenderer, Zones, tuple[Any, ...]]:
        """What is rendered: the request as it is, or what an overridden method made of it."""
        if type(self).to_request_messages is ContextBackend.to_request_messages:
            return request.rendering, request.zones, request.trailing
        records = map(from_message, self.to_request_messages(request))
        return RequestRenderer(), Zones(incremental=PersistentVector.of(records)), ()

    @asynccontextmanager
    async def _answer(
        self, request: Request, *, stream: bool
    ) -> AsyncGenerator[tuple[Api, httpx.Response]]:
        api = self._api_for(request)
        silence = self._idle_timeout if stream else request.options.timeout
        try:
            try:
                response = await self._request(request, api, silence, stream=stream)
            except BackendError as error:
                if not self._needs_responses_api(error, api):
                    raise
                self._responses_models.add(self._model(request))
                api = RESPONSES
                response = await self._request(request, api, silence, stream=stream)
            async with aclosing(response):
                yield api, response
        except httpx.UnsupportedProtocol as error:
            raise InvalidOptions(f"base_url {self.base_url!r}: {error}") from error
        except ResponseTooLong as error:
            raise self._error(ErrorKind.PROTOCOL, str(error)) from error
        except httpx.HTTPError as error:
            raise self._error(ErrorKind.TRANSPORT, _describe(error, silence)) from error

    async def _request(
        self, request: Request, api: Api, silence: float, *, stream: bool
    ) -> httpx.Response:
        """The answer, still to be read. `BackendError` if the server refuses."""
        if request.rendering.missing(request.zones) <= _FEW:
            content = self._body(request, api, stream=stream)
        else:
            content = await io_loop().offload(self._body, request, api, stream=stream)
        url, headers = await self.address(api)
        if traced := trace_headers():
            headers = httpx.Headers([*headers.multi_items(), *traced.items()])
        timeout = httpx.Timeout(silence, connect=self._connect_timeout, pool=None)
        call = httpx.Request(
            "POST", url, headers=headers, content=content, extensions={"timeout": timeout.as_dict()}
        )
        try:
            async with asyncio.timeout(self._connect_timeout + silence):
                response = await self._open_stream().handle_async_request(call)
        except TimeoutError as error:
            raise httpx.ReadTimeout("silence") from error
        if not response.is_success:
            async with aclosing(response):
                raise await self._failure(response, silence)
        return response

    def _needs_responses_api(self, error: BackendError, api: Api) -> bool:
        may_move = self._api == "auto" and api is CHAT and error.status == 400
        return may_move and _ELSEWHERE.search(str(error)) is not None

    def _open_stream(self) -> httpx.AsyncBaseTransport:
        # Without httpx's client: cookies, redirects and hooks cost a tenth of a request's time.
        if self._opened_transport is None:
            self._opened_transport = self._transport or AiohttpTransport()
        return self._opened_transport

    async def _failure(self, response: httpx.Response, silence: float) -> BackendError:
        body = await read_start(response, silence)
        return error_from_response(response.status_code, response.headers, body, vendor=self.vendor)

    def _check_end(self, reader: Reader, api: Api, *, whole: bool) -> None:
        told = reader.finished and not (api is CHAT and self.ends_with_done)
        if reader.done or told or (whole and reader.whole):
            return
        raise self._error(ErrorKind.TRANSPORT, "its answer broke off before the end")

    def _json(self, payload: bytes) -> Mapping[str, Any]:
        try:
            answer = loads_lenient(payload)
        except ValueError as error:
            raise self._no_json(payload) from error
        if not isinstance(answer, Mapping):
            raise self._error(ErrorKind.PROTOCOL, "its answer is not an object")
        return cast("Mapping[str, Any]", answer)

    def _no_json(self, body: bytes) -> BackendError:
        start = body[:80].decode("utf-8", "replace")
        return self._error(ErrorKind.PROTOCOL, f"its answer is not JSON: {start!r}")

    def _error(self, kind: ErrorKind, text: str) -> BackendError:
        return BackendError(f"{self.vendor}: {text}", kind=kind, vendor=self.vendor)


def _describe(error: httpx.HTTPError, silence: float) -> str:
    if isinstance(error, httpx.ReadTimeout):
        return f"nothing came for {silence:g} seconds"
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time"
    return str(error) or type(error).__name__
