"""Who may come in, what each may see, and how much is taken on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_context.errors import InvalidOptions
from agent_context.service import Bounds, ModelRoute, ServiceConfig, make_server
from agent_context.service.auth import KeyFile
from agent_context.service.gate import RateLimiter
from agent_context.stores.memory import MemoryStore
from agent_context_backends.scripted import Hold
from tests.service.conftest import Serve, Served, leave, scripted
from tests.support.waiting import wait_for, wait_until


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.json")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_tenant_cannot_tell_anothers_session_from_none(serve: Serve, keys: KeyFile) -> None:
    ann, bob = (keys.create(tenant=name)[0] for name in ("ann", "bob"))
    service = serve(keys=keys.path)
    service.post("/v1/sessions", {"id": "s", "system": "ann's"}, headers=bearer(ann))
    paths = [
        "/v1/sessions/{}",
        "/v1/sessions/{}/messages",
        "/v1/sessions/{}/export.jsonl",
        "/v1/sessions/{}/context",
        "/v1/sessions/{}/events",
        "/v1/sessions/{}/usage",
        "/v1/sessions/{}/history",
    ]

    for path in paths:
        theirs = service.get(path.format("s"), headers=bearer(bob))
        nobodys = service.get(path.format("t"), headers=bearer(bob))
        assert (theirs.status_code, nobodys.status_code) == (404, 404)
        assert theirs.text.replace("'s'", "'t'") == nobodys.text
    assert service.get("/v1/sessions", headers=bearer(bob)).json()["data"] == []
    found = service.get("/v1/search", params={"q": "ann"}, headers=bearer(bob)).json()
    assert found["data"] == []
    deleted = service.http.delete("/v1/sessions/s", headers=bearer(bob))
    assert deleted.status_code == 404


def test_each_tenant_may_have_a_session_of_the_same_name(serve: Serve, keys: KeyFile) -> None:
    tokens = [keys.create(tenant=name)[0] for name in ("ann", "bob", "default")]
    service = serve(keys=keys.path)

    for token in tokens:
        said = {"id": "s", "messages": [{"role": "user", "content": token[-4:]}]}
        assert service.post("/v1/sessions", said, headers=bearer(token)).status_code == 201

    for token in tokens:
        listed = service.get("/v1/sessions", headers=bearer(token)).json()["data"]
        assert [each["id"] for each in listed] == ["s"]
        said = service.get("/v1/sessions/s/messages", headers=bearer(token)).json()["data"]
        assert [message["content"] for message in said] == [token[-4:]]
    reserved = service.get("/v1/sessions/tenant%2Fann%2Fs", headers=bearer(tokens[2]))
    assert reserved.status_code == 404


def test_without_a_key_nobody_comes_in_once_there_is_one(serve: Serve, keys: KeyFile) -> None:
    service = serve(keys=keys.path)
    assert service.get("/v1/sessions").status_code == 200

    token, key = keys.create()

    for headers in ({}, bearer("ac-wrong"), {"Authorization": "Basic x"}, {"x-api-key": ""}):
        refused = service.get("/v1/sessions", headers=headers)
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert service.get("/v1/sessions", headers=bearer(token)).status_code == 200
    assert service.get("/v1/sessions", headers={"x-api-key": token}).status_code == 200
    assert service.get("/livez").status_code == 200
    keys.create(tenant="other")
    keys.revoke(key.id)
    assert service.get("/v1/sessions", headers=bearer(token)).status_code == 401


def test_a_key_does_what_its_scope_allows(serve: Serve, keys: KeyFile) -> None:
    read, write, admin = (keys.create(scopes=[scope])[0] for scope in ("read", "write", "admin"))
    service = serve(keys=keys.path)

    refused = service.post("/v1/sessions", headers=bearer(read))

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert service.get("/v1/sessions", headers=bearer(read)).status_code == 200
    assert service.post("/v1/sessions", headers=bearer(write)).status_code == 201
    assert service.get("/metrics", headers=bearer(write)).status_code == 403
    assert service.get("/metrics", headers=bearer(admin)).status_code == 200


def test_only_hashes_of_keys_are_kept(keys: KeyFile) -> None:
    token, _ = keys.create(name="laptop")

    assert token not in keys.path.read_text()
    assert keys.path.stat().st_mode & 0o077 == 0
    assert [key.name for key in keys.load()] == ["laptop"]
    with pytest.raises(InvalidOptions, match="tenant"):
        keys.create(tenant="../x")
    with pytest.raises(InvalidOptions, match="scopes"):
        keys.create(scopes=["root"])  # type: ignore[list-item]
    keys.path.write_text("[{}]")
    with pytest.raises(InvalidOptions, match="missing required field"):
        keys.load()


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "127.evil.example"}, {"Origin": "https://evil.example"}],
)
def test_without_keys_no_other_site_comes_in_through_the_browser(
    serve: Serve, headers: dict[str, str]
) -> None:
    service = serve()

    refused = service.post("/v1/sessions", headers=headers)

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "key_needed")
    for host in ("localhost:8321", "[::1]:8321", "127.0.0.1"):
        assert service.get("/v1/sessions", headers={"Host": host}).status_code == 200


def test_without_keys_nobody_else_is_listened_to(keys: KeyFile) -> None:
    config = ServiceConfig(
        store=MemoryStore(), models={"m": ModelRoute(scripted(None))}, keys=keys.path
    )

    with pytest.raises(InvalidOptions, match="without a key only this machine"):
        make_server(config, host="0.0.0.0")
    keys.create()
    make_server(config, host="0.0.0.0").service.host.drain(0)


def test_a_body_past_the_bound_is_refused_announced_or_not(serve: Serve) -> None:
    service = serve(bounds=Bounds(body=1_000))
    long = b'{"system": "' + b"x" * 2_000 + b'"}'
    kind = {"Content-Type": "application/json"}

    announced = service.http.post("/v1/sessions", content=long, headers=kind)
    chunked = service.http.post(
        "/v1/sessions", content=iter([long[:900], long[900:]]), headers=kind
    )

    for refused in (announced, chunked):
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert service.get("/v1/sessions").json()["data"] == []


def test_turns_past_a_bound_are_told_to_come_back(serve: Serve) -> None:
    hold, other = Hold(), Hold()
    service = serve([hold, "a", other, *"bcdef"], bounds=Bounds(turns_per_conversation=2, turns=3))
    for name in "st":
        service.session(id=name)
    go = {"text": "Go", "background": True}
    for _ in range(2):
        assert service.post("/v1/sessions/s/send", go).status_code == 202
    wait_for(hold.entered)

    of_one = service.post("/v1/sessions/s/send", go)
    third = service.post("/v1/sessions/t/send", go)
    wait_for(other.entered)
    of_all = service.post("/v1/sessions/t/send", go)
    hold.release()
    other.release()

    assert (of_one.status_code, of_one.json()["error"]["code"]) == (429, "too_many_requests")
    assert third.status_code == 202
    assert (of_all.status_code, of_all.json()["error"]["code"]) == (503, "overloaded")
    assert of_one.headers["Retry-After"] == of_all.headers["Retry-After"] == "1"


def test_streams_past_the_bound_are_refused_until_one_is_closed(serve: Serve) -> None:
    service = serve(bounds=Bounds(streams_per_key=1))
    session = service.session()
    path = f"/v1/sessions/{session}/events"
    frames = service.frames("GET", path, params={"after": 0})
    service.post(f"/v1/sessions/{session}/messages", {"messages": [{"role": "user"}]})
    next(frames)

    refused = service.get(path)
    leave(frames)

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_streams")
    wait_until(lambda: _opens(service, path))


def _opens(service: Served, path: str) -> bool:
    with service.http.stream("GET", path) as response:
        return response.status_code == 200


def test_a_key_that_asks_too_often_waits(serve: Serve) -> None:
    service = serve(bounds=Bounds(requests_per_minute=8))

    statuses = [service.get("/v1/sessions").status_code for _ in range(3)]
    refused = service.get("/v1/sessions")

    assert statuses == [200, 200, 429]
    assert int(refused.headers["Retry-After"]) >= 1
    limiter = RateLimiter(60)
    assert [limiter.take("a") > 0 for _ in range(16)] == [False] * 15 + [True]
    assert limiter.take("b") == 0


def test_paths_and_methods_that_are_not_there_are_told_so(serve: Serve) -> None:
    service = serve()

    missing = service.get("/v1/nothing")
    wrong = service.http.delete("/v1/sessions")
    anthropic = service.get("/v1/messages")

    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert anthropic.json()["type"] == "error"


def test_no_cross_origin_header_is_ever_sent(serve: Serve) -> None:
    service = serve()

    response = service.http.options("/v1/sessions", headers={"Origin": "http://localhost:3000"})

    assert not [name for name in response.headers if name.startswith("access-control")]
