"""How a service says that it is well, tells what happens, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent_context import TextDelta
from agent_context.service import open_backend
from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import ConversationInfo
from agent_context_backends.scripted import Hold
from tests.service.conftest import Serve, leave
from tests.support.sse_client import read_frames
from tests.support.waiting import WAIT, join, wait_until


def test_changes_are_told_as_they_happen_and_again_from_any_place(serve: Serve) -> None:
    service = serve()
    session = service.session()
    path = f"/v1/sessions/{session}/events"
    frames = service.frames("GET", path, params={"after": 0})

    service.post(f"/v1/sessions/{session}/send", {"text": "a"})
    asked, first = next(frames), next(frames)
    service.post(f"/v1/sessions/{session}/rewind", {"to": 0})
    second = next(frames)
    leave(frames)
    service.post(f"/v1/sessions/{session}/messages", {"messages": [{"role": "user"}]})
    resumed = service.frames("GET", path, headers={"Last-Event-ID": str(first.id)})

    said = [frame.data["messages"][0]["content"] for frame in (asked, first)]
    assert said == ["a", "re: a"]
    assert second.event == "rewound"
    assert next(resumed) == second
    assert next(resumed).event in {"appended", "extended"}
    leave(resumed)


def test_changes_of_all_sessions_are_told_by_position(serve: Serve) -> None:
    service = serve()
    for name in "ab":
        service.session(id=name, messages=[{"role": "user", "content": name}])
    frames = service.frames("GET", "/v1/events")

    told = [next(frames) for _ in range(4)]
    leave(frames)
    again = service.frames("GET", "/v1/events", headers={"Last-Event-ID": str(told[1].id)})

    assert {frame.data["session"] for frame in told} == {"a", "b"}
    assert next(again) == told[2]
    leave(again)


def test_a_silent_stream_is_pinged(serve: Serve) -> None:
    service = serve(ping=0.05)
    session = service.session()

    with service.http.stream("GET", f"/v1/sessions/{session}/events") as response:
        lines = response.iter_lines()
        comments = [next(lines) for _ in range(6)]

    assert comments == [": ping", ""] * 3
    assert response.headers["X-Accel-Buffering"] == "no"


def test_readiness_looks_at_the_store(serve: Serve) -> None:
    class Broken(MemoryStore):
        def conversations(self, *, after: str = "", limit: int = 100) -> list[ConversationInfo]:
            from agent_context.errors import StoreUnavailable

            raise StoreUnavailable("the disk is full")

    service = serve(store=Broken())

    assert service.get("/livez").json() == {"status": "ok"}
    ready = service.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "the disk is full")


def test_metrics_count_requests_tokens_and_changes(serve: Serve) -> None:
    service = serve()
    session = service.session()
    service.post(f"/v1/sessions/{session}/send", {"text": "a"})

    text = service.get("/metrics").text

    route = 'method="POST",route="/v1/sessions/{session_id}/send",status="200"'
    assert f"context_actor_requests_total{{{route}}} 1.0" in text
    assert 'context_actor_tokens_total{kind="output",model="scripted"}' in text
    assert "context_actor_live_conversations 1.0" in text
    assert "context_actor_open_streams 0.0" in text


def test_a_stop_tells_open_streams_and_keeps_what_has_come(serve: Serve) -> None:
    hold = Hold()
    service = serve([[TextDelta("half"), hold]], drain=0.1)
    session = service.session(messages=[{"role": "user", "content": "before"}])
    turn = service.frames(
        "POST", f"/v1/sessions/{session}/send", json={"text": "a", "stream": True}
    )
    changes = service.frames("GET", f"/v1/sessions/{session}/events", params={"after": 0})
    assert [next(turn).event, next(turn).event, next(changes).event] == ["turn", "text", "extended"]
    started = time.monotonic()

    service.server.should_exit = True
    last = [frame.event for frame in (*turn, *changes)]
    join(service.thread)

    assert time.monotonic() - started < 5
    assert (last[0], last[-1]) == ("server_draining", "server_draining")
    assert serve().texts(session) == ["before", "a", "half"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`context-actor serve` with the model that repeats, and its address."""
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "agent_context.cli", "serve", "--port", "0"]
    started = subprocess.Popen(
        [*command, "--model", "echo=echo"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line.startswith("Serving echo on http://127.0.0.1:"), line
    yield started, line.split()[-1]
    started.kill()
    started.wait()
    started.stdout.close()


def test_sigterm_with_open_streams_ends_cleanly_within_two_seconds(
    process: tuple[subprocess.Popen[str], str],
) -> None:
    server, url = process
    wait_until(lambda: _is_ready(url))
    with httpx.Client(base_url=url, trust_env=False, timeout=WAIT) as http:
        http.post("/v1/sessions", json={"id": "s"}).raise_for_status()
        answer = http.post("/v1/sessions/s/send", json={"text": "hello"}).json()
        with http.stream("GET", "/v1/sessions/s/events", params={"after": 0}) as response:
            frames = read_frames(response.iter_lines())
            next(frames)
            began = time.monotonic()
            server.send_signal(signal.SIGTERM)
            rest = [frame.event for frame in frames]
        code = server.wait(WAIT)
        took = time.monotonic() - began

    assert answer["message"]["content"] == "You said: hello"
    assert rest[-1] == "server_draining"
    assert code in {0, -signal.SIGTERM}
    assert took < 2


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def test_a_killed_service_goes_on_where_it_was(
    process: tuple[subprocess.Popen[str], str], tmp_path: Path, serve: Serve
) -> None:
    server, url = process
    wait_until(lambda: _is_ready(url))
    with httpx.Client(base_url=url, trust_env=False, timeout=WAIT) as http:
        http.post("/v1/sessions", json={"id": "s"}).raise_for_status()
        http.post("/v1/sessions/s/send", json={"text": "hello"}).raise_for_status()
    server.send_signal(signal.SIGKILL)
    assert server.wait(WAIT) == -signal.SIGKILL
    from agent_context.stores.sqlite import SqliteStore

    service = serve(store=SqliteStore(tmp_path / "context-actor/conversations.db"))

    assert service.texts("s") == ["hello", "You said: hello"]


def test_a_backend_that_is_not_installed_is_named() -> None:
    with pytest.raises(Exception, match="there is no 'magic'; there is anthropic, deepseek, echo"):
        open_backend("magic")
