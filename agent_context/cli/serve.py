"""`context-actor serve`: a service from options and the environment."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct

from agent_context._installed_backends import find_usable
from agent_context.cli.places import data_folder, failures, key_file, open_store, said_store
from agent_context.errors import InvalidOptions
from agent_context.service import (
    Bounds,
    ModelRoute,
    ServiceConfig,
    make_server,
    open_backend,
)

__all__ = ["ServeOptions", "run"]


class ServeOptions(Struct, frozen=True, kw_only=True):
    """As the command takes them."""

    host: str
    port: int
    store: str | None
    models: Sequence[str]
    keys: Path | None
    on_rewrite: str
    requests_per_minute: int | None


def run(options: ServeOptions) -> None:
    """Serve until the process is told to end."""
    with failures():
        if options.on_rewrite not in {"fork", "rewind"}:
            raise InvalidOptions(f"on-rewrite: fork or rewind, not {options.on_rewrite!r}")
        models = dict(_routes(options.models or tuple(_usual_models())))
        config = ServiceConfig(
            store=open_store(said_store(options.store) or data_folder() / "conversations.db"),
            models=models,
            keys=key_file(options.keys),
            on_rewrite=cast("Literal['fork', 'rewind']", options.on_rewrite),
            bounds=Bounds(requests_per_minute=options.requests_per_minute),
        )
        server = make_server(config, host=options.host, port=options.port)
        listening = socket.create_server((options.host, options.port), reuse_port=False)
    _announce(options.host, listening.getsockname()[1], models)
    server.run(sockets=[listening])


def _usual_models() -> Iterator[str]:
    """What can be asked here: vendors whose key is set, else a model that needs none."""
    found = find_usable()
    for name in found:
        yield f"{name}={name}"
    yield f"*={found[0]}"


def _routes(models: Sequence[str]) -> Iterator[tuple[str, ModelRoute]]:
    opened: dict[str, ModelRoute] = {}
    for text in models:
        name, found, target = text.partition("=")
        if not (found and name and target):
            raise InvalidOptions(f"model: NAME=BACKEND[:MODEL] is expected, not {text!r}")
        backend, _, model = target.partition(":")
        if backend not in opened:
            opened[backend] = ModelRoute(open_backend(backend))
        yield name, ModelRoute(opened[backend].backend, model or None)


def _announce(host: str, port: int, models: Mapping[str, ModelRoute]) -> None:
    name = next(iter(models))
    url = f"http://{host if ':' not in host else f'[{host}]'}:{port}"
    print(  # noqa: T201 - what the command says
        f"""Serving {", ".join(each for each in models if each != "*")} on {url}

  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

  OpenAI(base_url="{url}/v1", api_key="any")    # docs: {url}/docs
""",
        flush=True,
        file=sys.stdout,
    )
