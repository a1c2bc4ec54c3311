"""A backend that asks another model where the first one fails."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, cast

from agent_context._validation import check_type
from agent_context.backend import ContextBackend, Request
from agent_context.errors import BackendError, ErrorKind, InvalidOptions
from agent_context.messages import Completion, Message
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import StreamEvent
from agent_context.wire.rendering import RequestRenderer

__all__ = ["FallbackBackend"]

_log = logging.getLogger(__name__)

_PASSING: Final = frozenset(
    {ErrorKind.OVERLOADED, ErrorKind.RATE_LIMITED, ErrorKind.TRANSPORT, ErrorKind.QUOTA}
)


class FallbackBackend(ContextBackend):
    """Asks the first backend, and where it fails the next, request by request.

    Counting, options and windows are those of the first: give a model of the same size behind it.
    What only one vendor understands, thoughts for one, goes to no other. A stream goes over to the
    next only while nothing of it has arrived.
    """

    def __init__(
        self,
        *backends: ContextBackend,
        on: Collection[ErrorKind] = _PASSING,
        models: Mapping[str, str] | None = None,
    ) -> None:
        """Two backends or more, in this order.

        Args:
            backends: Who is asked. They are closed with this one.
            on: The kinds of errors after which the next one is asked.
            models: By vendor, the model that is asked there in the place of the options'; else a
                backend that isn't the first is asked for its own default.

        Raises:
            InvalidOptions: there are fewer than two, or `on` names no kind of error.
        """
        if len(backends) < 2:
            raise InvalidOptions("FallbackBackend: two backends or more, the first choice first")
        self._backends = tuple(check_type("backends", each, ContextBackend) for each in backends)
        self._on = frozenset(check_type("on", kind, ErrorKind) for kind in on)
        self._models = dict(models or {})
        self._renderers = [RequestRenderer() for _ in backends[1:]]
        first = self._backends[0]
        self.vendor = first.vendor  # type: ignore[misc]
        self.dialect = first.dialect  # type: ignore[misc]

    async def send(self, request: Request) -> Completion:
        """The whole answer of the first that gives one. Raises what the last one raised."""
        for backend, own, last in self._requests(request):
            try:
                return await backend.send(own)
            except BackendError as error:
                if last or not self._passes_on(backend, error):
                    raise
        raise AssertionError("the last one returns or raises")

    async def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        """The same as a stream."""
        for backend, own, last in self._requests(request):
            begun = False
            try:
                async with aclosing(cast("Any", backend.send_stream(own))) as events:
                    async for event in events:
                        begun = True
                        yield event
            except BackendError as error:
                if begun or last or not self._passes_on(backend, error):
                    raise
            else:
                return

    def _requests(self, request: Request) -> Iterator[tuple[ContextBackend, Request, bool]]:
        """Who is asked, for what, and whether there is nobody behind."""
        last = len(self._backends) - 1
        for place, backend in enumerate(self._backends):
            own = request if place == 0 else self._rewrite(request, backend, place)
            yield backend, own, place == last

    def _rewrite(self, request: Request, backend: ContextBackend, place: int) -> Request:
        model = self._models.get(backend.vendor)
        options = request.options.model_copy(update={"model": model, "extra": {}})
        facts = backend.model_facts(model)
        renderer = self._renderers[place - 1]
        return replace(request, options=options, facts=facts, rendering=renderer)

    def _passes_on(self, backend: ContextBackend, error: BackendError) -> bool:
        if error.kind not in self._on:
            return False
        _log.warning("%s failed (%s): the next one is asked", backend.vendor, error)
        return True

    # What is asked beside the model is the first one's to say.

    def model_facts(self, model: str | None) -> ModelFacts:
        return self._backends[0].model_facts(model)

    def response_formats(self, options: SendOptions) -> frozenset[str]:
        """What all of them can be asked for."""
        formats = self._backends[0].response_formats(options)
        for backend in self._backends[1:]:
            formats &= backend.response_formats(options)
        return formats

    def user_message(self, text: str) -> Message:
        return self._backends[0].user_message(text)

    def system_message(self, text: str) -> Message:
        return self._backends[0].system_message(text)

    def tool_message(self, tool_call_id: str, text: str) -> Message:
        return self._backends[0].tool_message(tool_call_id, text)

    def to_system_message(self, text: str) -> Message:
        return self._backends[0].to_system_message(text)

    def to_request_messages(self, request: Request) -> tuple[Message, ...]:
        return self._backends[0].to_request_messages(request)

    def extract_messages(self, response: Mapping[str, Any]) -> tuple[Message, ...]:
        return self._backends[0].extract_messages(response)

    def classify_chunk(self, chunk: Mapping[str, Any]) -> tuple[StreamEvent, ...]:
        return self._backends[0].classify_chunk(chunk)

    def merge_chunks(self, chunks: Iterable[StreamEvent]) -> Message:
        return self._backends[0].merge_chunks(chunks)

    def prefix_fields(self, request: Request) -> Mapping[str, object]:
        return self._backends[0].prefix_fields(request)

    def estimate_tokens(self, message: Message, facts: ModelFacts) -> int:
        return self._backends[0].estimate_tokens(message, facts)

    async def aclose(self) -> None:
        """Close all of them."""
        for backend in self._backends:
            await backend.aclose()
