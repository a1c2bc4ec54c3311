"""The models of a service: which backend answers under which name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from msgspec import Struct

from agent_context.backend import ContextBackend, Request
from agent_context.errors import InvalidOptions
from agent_context.messages import Completion, Message
from agent_context.models import ModelFacts
from agent_context.options import SendOptions
from agent_context.stream_events import StreamEvent
from agent_context.wire.dialect import Dialect

__all__ = ["Catalog", "ModelRoute", "to_backend"]

ANY = "*"


class ModelRoute(Struct, frozen=True):
    """Who answers for one name."""

    backend: ContextBackend
    model: str | None = None
    """What the backend calls the model; None for its default."""


class Catalog:
    """Names of models, looked up."""

    def __init__(self, routes: Mapping[str, ModelRoute]) -> None:
        self._routes = dict(routes)
        self.default = next(iter(self._routes))

    @property
    def names(self) -> tuple[str, ...]:
        """Every name but `*`, the default first."""
        return tuple(name for name in self._routes if name != ANY)

    @property
    def backends(self) -> Sequence[ContextBackend]:
        """Each backend once."""
        return tuple({id(route.backend): route.backend for route in self._routes.values()}.values())

    def find(self, name: str | None) -> ModelRoute | None:
        """Who answers for this name; the default for None."""
        return self._routes.get(name or self.default) or self._routes.get(ANY)

    def route(self, name: str | None) -> ModelRoute:
        """The same. Raises `InvalidOptions` for a name that nobody answers for."""
        found = self.find(name)
        if found is None:
            known = ", ".join(self.names)
            raise InvalidOptions(f"model: there is no {name!r} here; there is {known}")
        return found


def to_backend(catalog: Catalog) -> ContextBackend:
    """One backend that answers for every name of the catalog."""
    if len(catalog.backends) > 1:
        return _Router(catalog)
    only = catalog.backends[0]

    class OneVendor(_Router):
        """Says of partial answers and of the prompt cache whose they are."""

        vendor: ClassVar[str] = only.vendor
        dialect: ClassVar[Dialect] = only.dialect

    return OneVendor(catalog)


class _Router(ContextBackend):
    """Passes each request on to the backend that its model names."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def send(self, request: Request) -> Completion:
        route = self._catalog.route(request.options.model)
        return await route.backend.send(_passed_on(request, route))

    def send_stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        route = self._catalog.route(request.options.model)
        return route.backend.send_stream(_passed_on(request, route))

    def model_facts(self, model: str | None) -> ModelFacts:
        route = self._catalog.route(model)
        return route.backend.model_facts(route.model)

    def response_formats(self, options: SendOptions) -> frozenset[str]:
        route = self._catalog.route(options.model)
        return route.backend.response_formats(_options_for(options, route))

    def prefix_fields(self, request: Request) -> Mapping[str, object]:
        route = self._catalog.route(request.options.model)
        return route.backend.prefix_fields(_passed_on(request, route))

    def to_request_messages(self, request: Request) -> tuple[Message, ...]:
        route = self._catalog.route(request.options.model)
        return route.backend.to_request_messages(_passed_on(request, route))

    async def aclose(self) -> None:
        for backend in self._catalog.backends:
            await backend.aclose()


def _passed_on(request: Request, route: ModelRoute) -> Request:
    return replace(request, options=_options_for(request.options, route))


def _options_for(options: SendOptions, route: ModelRoute) -> SendOptions:
    return options.model_copy(update={"model": route.model})
