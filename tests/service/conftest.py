"""Services on loopback, run by the real server, with scripted models behind them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import openai
import pytest

from agent_context.backend import ContextBackend, Request
from agent_context.service import ModelRoute, Server, ServiceConfig, make_server
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context_backends.scripted import ScriptedBackend, ScriptItem
from tests.support.sse_client import Frame, read_frames
from tests.support.waiting import WAIT, join, wait_until


@dataclass
class Served:
    """A service that runs."""

    url: str
    server: Server
    backend: ContextBackend
    http: httpx.Client
    thread: Thread

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json={} if body is None else body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def session(self, **fields: Any) -> str:
        """The id of a new session."""
        made = self.post("/v1/sessions", fields)
        assert made.status_code == 201, made.text
        name: str = made.json()["id"]
        return name

    def frames(self, method: str, path: str, **options: Any) -> Iterator[Frame]:
        """The events of a stream, as they come."""
        with self.http.stream(method, path, **options) as response:
            assert response.status_code == 200, response.read()
            yield from read_frames(response.iter_lines())

    def texts(self, session: str) -> list[str]:
        """What the messages of a session say."""
        data = self.get(f"/v1/sessions/{session}/messages").json()["data"]
        return [message["content"] for message in data]

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        self.server.should_exit = True
        join(self.thread)


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts services, and stops them in the end."""
    running: list[Served] = []

    def start(
        script: Iterable[ScriptItem] | ContextBackend | None = None,
        *,
        store: Store | None = None,
        **config: Any,
    ) -> Served:
        backend = script if isinstance(script, ContextBackend) else scripted(script)
        config.setdefault("models", {"scripted": ModelRoute(backend, "model-1")})
        store = store or SqliteStore(tmp_path / "talks.db")
        served = start_server(ServiceConfig(store=store, **config), backend)
        running.append(served)
        return served

    yield start
    for served in running:
        served.http.close()
        served.stop()


@pytest.fixture
def connect() -> Iterator[Any]:
    """OpenAI's client of a service, which believes no answer that is not of its types."""
    clients: list[openai.OpenAI] = []

    def make(service: Served, *, path: str = "/v1", **options: Any) -> openai.OpenAI:
        client = openai.OpenAI(
            base_url=f"{service.url}{path}",
            api_key=options.pop("api_key", "none"),
            max_retries=0,
            timeout=WAIT,
            _strict_response_validation=True,
            **options,
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def start_server(config: ServiceConfig, backend: ContextBackend) -> Served:
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = make_server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    http = httpx.Client(base_url=url, trust_env=False, timeout=WAIT)
    return Served(url, server, backend, http, thread)


def scripted(script: Iterable[ScriptItem] | None) -> ScriptedBackend:
    """A model with a script, or one that repeats for ever what was said last."""
    return ScriptedBackend(repeat(echo) if script is None else script)


def echo(request: Request) -> str:
    return f"re: {request.records[-1].message.text}"


def leave(frames: Iterator[Frame]) -> None:
    """Go away, as a client does that is closed in the middle of a stream."""
    with suppress(httpx.HTTPError):
        frames.close()  # type: ignore[attr-defined]
