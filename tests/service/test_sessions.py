"""Sessions over HTTP: made, said to, read, edited, forked, exported."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_context import BackendError, ErrorKind
from agent_context_backends.scripted import Hold
from tests.service.conftest import Serve, leave
from tests.support.postgres import new_store
from tests.support.waiting import wait_for, wait_until


def test_a_session_is_made_said_to_and_read(serve: Serve) -> None:
    service = serve(["Oslo."])
    session = service.session(system="Be terse.", metadata={"title": "capitals"})

    answer = service.post(f"/v1/sessions/{session}/send", {"text": "Norway?"}).json()

    assert answer["message"]["content"] == "Oslo."
    assert (answer["finish_reason"], answer["model"]) == ("stop", "model-1")
    assert answer["usage"]["input_tokens"] > 0
    assert service.texts(session) == ["Be terse.", "Norway?", "Oslo."]
    known = service.get(f"/v1/sessions/{session}").json()
    assert known["zones"] == {"immutable": 1, "compressed": 0, "incremental": 2}
    assert known["metadata"] == {"title": "capitals"}


def test_a_turn_streams_its_events_in_order(serve: Serve) -> None:
    service = serve(["Four words for you"])
    session = service.session()

    frames = list(
        service.frames("POST", f"/v1/sessions/{session}/send", json={"text": "Go", "stream": True})
    )

    assert [frame.event for frame in frames] == ["turn", *["text"] * 4, "usage", "finished"]
    assert "".join(f.data["text"] for f in frames if f.event == "text") == "Four words for you"
    assert [frame.id for frame in frames[1:]] == ["1", "2", "3", "4", "5", "6"]
    assert frames[-1].data["message"]["content"] == "Four words for you"


def test_a_client_that_goes_away_loses_nothing_and_reads_on(serve: Serve) -> None:
    hold = Hold()
    service = serve([[_text("one "), hold, _text("two")]])
    session = service.session()
    frames = service.frames(
        "POST", f"/v1/sessions/{session}/send", json={"text": "Count", "stream": True}
    )
    turn = next(frames).data["turn_id"]
    assert next(frames).data == {"text": "one "}
    leave(frames)

    hold.release()
    path = f"/v1/sessions/{session}/turns/{turn}"
    rest = list(service.frames("GET", f"{path}/events", headers={"Last-Event-ID": "1"}))

    assert [frame.event for frame in rest] == ["text", "finished"]
    assert rest[0].data == {"text": "two"}
    assert service.texts(session) == ["Count", "one two"]
    assert service.get(path).json()["status"] == "completed"
    whole = list(service.frames("GET", f"{path}/events"))
    assert [frame.event for frame in whole] == ["turn", "text", "text", "finished"]


def test_a_turn_in_the_background_is_found_by_its_id_and_cancelled(serve: Serve) -> None:
    hold = Hold()
    service = serve([[_text("begun"), hold, _text("never")]])
    session = service.session()

    begun = service.post(f"/v1/sessions/{session}/send", {"text": "Go", "background": True})
    wait_for(hold.entered)
    path = f"/v1/sessions/{session}"
    running = service.get(path).json()["turns"]
    cancelled = service.post(f"{path}/cancel").json()

    assert begun.status_code == 202
    assert running == [begun.json()["turn_id"]]
    assert cancelled == {"cancelled": True}
    wait_until(lambda: service.get(path).json()["turns"] == [])
    turn = service.get(f"{path}/turns/{running[0]}").json()
    assert (turn["status"], turn["error"]["code"]) == ("failed", "turn_cancelled")
    assert service.texts(session) == ["Go", "begun"]
    assert service.post(f"{path}/cancel").json() == {"cancelled": False}


def test_an_idempotency_key_is_answered_once_in_this_process_and_the_next(serve: Serve) -> None:
    service = serve(["first"])
    session = service.session(id="s")
    key = {"Idempotency-Key": "k1"}
    body = {"text": "Once"}

    first = service.post(f"/v1/sessions/{session}/send", body, headers=key).json()
    again = service.post(f"/v1/sessions/{session}/send", body, headers=key).json()
    other = service.post(f"/v1/sessions/{session}/send", {"text": "Twice"}, headers=key)
    service.stop()
    later = serve(["second"])
    frames = list(
        later.frames(
            "POST", f"/v1/sessions/{session}/send", json={**body, "stream": True}, headers=key
        )
    )

    assert first["message"] == again["message"]
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert [frame.event for frame in frames] == ["turn", "text", "finished"]
    assert frames[-1].data["message"] == first["message"]
    assert later.texts(session) == ["Once", "first"]


def test_a_key_that_is_asked_twice_at_once_is_answered_once(serve: Serve) -> None:
    hold = Hold()
    service = serve([[hold, _text("one answer")], "another"])
    session = service.session()
    path, key = f"/v1/sessions/{session}/send", {"Idempotency-Key": "k"}

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(service.post, path, {"text": "a"}, headers=key) for _ in range(4)]
        wait_for(hold.entered)
        hold.release()
        answers = [each.result().json()["message"]["content"] for each in asked]

    assert answers == ["one answer"] * 4
    assert service.texts(session) == ["a", "one answer"]


def test_a_key_whose_turn_has_failed_is_asked_anew(serve: Serve) -> None:
    failure = BackendError("busy", kind=ErrorKind.OVERLOADED, retryable=False)
    service = serve([failure, "answer"])
    session = service.session()
    path, key = f"/v1/sessions/{session}/send", {"Idempotency-Key": "k"}

    first, second = (service.post(path, {"text": "a"}, headers=key) for _ in range(2))

    assert (first.status_code, second.status_code) == (503, 200)
    assert service.texts(session) == ["a", "answer"]


def test_sessions_are_kept_in_postgresql_too(serve: Serve) -> None:
    with new_store() as store:
        service = serve(store=store)
        for name in ("b", "a", "Z"):
            service.session(id=name, messages=[{"role": "user", "content": f"parrot {name}"}])

        service.post("/v1/sessions/a/send", {"text": "hi"})

        listed = service.get("/v1/sessions").json()["data"]
        assert [each["id"] for each in listed] == ["Z", "a", "b"]
        assert service.texts("a") == ["parrot a", "hi", "re: hi"]
        assert len(service.get("/v1/search", params={"q": "parrot"}).json()["data"]) == 3
        service.stop()


def test_the_same_key_makes_the_same_session_and_the_same_messages(serve: Serve) -> None:
    service = serve()
    key = {"Idempotency-Key": "k"}

    first = service.post("/v1/sessions", {"system": "s"}, headers=key)
    again = service.post("/v1/sessions", {"system": "s"}, headers=key)
    session = first.json()["id"]
    body = {"messages": [{"role": "user", "content": "a"}]}
    one = service.post(f"/v1/sessions/{session}/messages", body, headers=key)
    two = service.post(f"/v1/sessions/{session}/messages", body, headers=key)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["id"] == session
    assert one.json()["ids"] == two.json()["ids"]
    assert service.texts(session) == ["s", "a"]


def test_what_was_meant_for_an_older_version_is_refused(serve: Serve) -> None:
    service = serve(["never"])
    session = service.session(messages=[{"role": "user", "content": "a"}])
    path = f"/v1/sessions/{session}"
    tag = service.get(path).headers["ETag"]
    assert service.get(f"{path}/messages").headers["ETag"] == tag
    said = {"messages": [{"role": "user", "content": "b"}]}

    fits = service.post(f"{path}/messages", said, headers={"If-Match": tag})
    stale = [
        service.post(f"{path}/messages", said, headers={"If-Match": tag}),
        service.post(f"{path}/send", {"text": "c"}, headers={"If-Match": tag}),
        service.post(f"{path}/rewind", {"to": 0}, headers={"If-Match": tag}),
    ]

    assert fits.status_code == 201
    assert fits.headers["ETag"] != tag
    assert [response.status_code for response in stale] == [412] * 3
    assert stale[0].json()["error"]["code"] == "version_conflict"
    assert service.texts(session) == ["a", "b"]
    wrong = service.post(f"{path}/messages", said, headers={"If-Match": "soon"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "If-Match")


def test_messages_are_paged_by_zone_in_either_order(serve: Serve) -> None:
    service = serve()
    texts = [f"m{number}" for number in range(5)]
    said = [{"role": "user", "content": text} for text in texts]
    session = service.session(system="s", messages=said)
    path = f"/v1/sessions/{session}/messages"

    first = service.get(path, params={"limit": 2, "zone": "incremental"}).json()
    rest = service.get(
        path, params={"limit": 9, "zone": "incremental", "after": first["next"]}
    ).json()
    newest = service.get(path, params={"limit": 1, "order": "desc"}).json()

    assert [m["content"] for m in first["data"] + rest["data"]] == texts
    assert rest["next"] is None
    assert newest["data"][0]["content"] == "m4"
    assert service.get(path, params={"zone": "immutable"}).json()["data"][0]["zone"] == "immutable"
    assert service.get(path, params={"after": "none"}).status_code == 400


def test_messages_are_replaced_and_removed_by_id(serve: Serve) -> None:
    service = serve()
    said = [{"role": "user", "content": text} for text in "abc"]
    session = service.session(messages=said)
    path = f"/v1/sessions/{session}/messages"
    ids = [message["id"] for message in service.get(path).json()["data"]]

    service.http.put(f"{path}/{ids[1]}", json={"role": "user", "content": "B"})
    removed = service.http.delete(f"{path}/{ids[0]}").json()
    missing = service.http.delete(f"{path}/{ids[0]}")

    assert [message["content"] for message in removed["removed"]] == ["a"]
    assert service.texts(session) == ["B", "c"]
    assert [m["id"] for m in service.get(path).json()["data"]] == ids[1:]
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "message_not_found")
    assert service.http.delete(path).json()["version"] > removed["version"]
    assert service.texts(session) == []


def test_a_session_is_forked_rewound_and_restored(serve: Serve) -> None:
    service = serve()
    said = [{"role": "user", "content": text} for text in "abc"]
    session = service.session(messages=said)
    path = f"/v1/sessions/{session}"
    second = service.get(f"{path}/messages").json()["data"][1]["id"]

    fork = service.post(f"{path}/fork", {"message_id": second, "id": "other"})
    service.post("/v1/sessions/other/messages", {"messages": [{"role": "user", "content": "d"}]})
    rewound = service.post(f"{path}/rewind", {"to": 1}).json()
    after = service.texts(session)
    service.post(f"{path}/restore")

    assert fork.status_code == 201
    assert fork.json()["parent"]["id"] == session
    assert service.texts("other") == ["a", "b", "d"]
    assert [message["content"] for message in rewound["removed"]] == ["b", "c"]
    assert after == ["a"]
    assert service.texts(session) == ["a", "b", "c"]
    assert service.post(f"{path}/fork", {"id": "other"}).status_code == 400


def test_sessions_are_listed_searched_and_deleted(serve: Serve) -> None:
    service = serve()
    for name in "abc":
        service.session(id=name, messages=[{"role": "user", "content": f"the {name} parrot"}])

    first = service.get("/v1/sessions", params={"limit": 2}).json()
    rest = service.get("/v1/sessions", params={"after": first["next"]}).json()
    found = service.get("/v1/search", params={"q": "parrot"}).json()["data"]
    within = service.get("/v1/sessions/b/search", params={"q": "parrot"}).json()["data"]
    deleted = service.http.delete("/v1/sessions/b")
    again = service.post("/v1/sessions", {"id": "b"})

    assert [each["id"] for each in first["data"] + rest["data"]] == ["a", "b", "c"]
    assert rest["next"] is None
    assert [each["session"] for each in found] == ["a", "b", "c"]
    assert [each["message"]["content"] for each in within] == ["the b parrot"]
    assert deleted.json()["deleted"] is True
    assert service.get("/v1/sessions/b").status_code == 404
    assert (again.status_code, again.json()["error"]["param"]) == (409, "id")


def test_what_is_exported_is_imported_byte_for_byte(serve: Serve) -> None:
    service = serve(["b"])
    session = service.session(system="s")
    service.post(f"/v1/sessions/{session}/send", {"text": "a"})
    path = f"/v1/sessions/{session}"
    lines = service.get(f"{path}/export.jsonl").text
    other = service.session()

    read = service.http.post(f"/v1/sessions/{other}/import?mode=replace", content=lines).json()
    broken = service.http.post(f"/v1/sessions/{other}/import", content=lines + "{no json")
    made = service.http.post("/v1/sessions:import", content=lines).json()

    assert read["imported"] == 3
    assert service.get(f"/v1/sessions/{other}/export.jsonl").text == lines
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "line 5")
    assert made["data"][0]["messages"] == 3
    assert service.texts(made["data"][0]["id"]) == ["s", "a", "b"]


def test_the_context_says_what_would_be_sent_and_what_it_takes(serve: Serve) -> None:
    service = serve(["b"])
    session = service.session(system="Be terse.")
    service.post(f"/v1/sessions/{session}/send", {"text": "a"})

    told = service.get(f"/v1/sessions/{session}/context", params={"text": "next"}).json()
    unknown = service.get(f"/v1/sessions/{session}/context", params={"model": "none"})

    assert (told["model"], told["vendor"]) == ("scripted", "scripted")
    assert [m["content"] for m in told["messages"]] == ["Be terse.", "a", "b", "next"]
    assert told["tokens"]["immutable"] > 0
    assert told["tokens"]["window"] == 128_000
    assert told["tokens"]["free"] + told["tokens"]["total"] + told["tokens"]["reserve"] == 128_000
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_usage_is_added_up_by_model(serve: Serve) -> None:
    service = serve()
    session = service.session()
    answers = [service.post(f"/v1/sessions/{session}/send", {"text": text}).json() for text in "ab"]

    usage = service.get(f"/v1/sessions/{session}/usage").json()

    assert usage["turns"] == 2
    assert usage["input_tokens"] == sum(each["usage"]["input_tokens"] for each in answers)
    assert usage["models"]["model-1"]["turns"] == 2
    assert usage["cache"]["turns"] == 2


def test_a_session_is_compressed_by_the_strategy_that_is_named(serve: Serve) -> None:
    service = serve(["short"])
    said = [{"role": "user", "content": f"{number} {'word ' * 200}"} for number in range(20)]
    session = service.session(messages=said)
    path = f"/v1/sessions/{session}"

    report = service.post(
        f"{path}/compress", {"strategy": "sliding_window", "arguments": {"turns": 2}}
    ).json()
    unknown = service.post(f"{path}/compress", {"strategy": "magic"})
    wrong = service.post(f"{path}/compress", {"strategy": "summarize", "arguments": {"turns": 2}})

    assert report["changed"] is True
    assert report["after"]["incremental"] < report["before"]["incremental"]
    assert len(service.texts(session)) == 2
    assert len(service.get(f"{path}/history").json()["data"]) == 20
    assert (unknown.status_code, wrong.status_code) == (400, 400)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ErrorKind.RATE_LIMITED, 429, "rate_limit_exceeded"),
        (ErrorKind.AUTH, 502, "vendor_refused_key"),
        (ErrorKind.CONTENT_FILTERED, 400, "content_filter"),
        (ErrorKind.PROTOCOL, 502, "vendor_failed"),
    ],
)
def test_a_vendors_failure_has_a_status_and_shows_no_key(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, error: ErrorKind, status: int, code: str
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "very-secret-value")
    text = "refused very-secret-value and sk-abcdefghijkl"
    failure = BackendError(text, kind=error, retryable=False, retry_after=7)
    service = serve([failure, failure])
    session = service.session()

    whole = service.post(f"/v1/sessions/{session}/send", {"text": "a"})
    streamed = service.post(f"/v1/sessions/{session}/send", {"text": "a", "stream": True})

    for response in (whole, streamed):
        assert response.status_code == status
        assert response.json()["error"]["code"] == code
        assert response.json()["error"]["message"] == "refused [key] and [key]"
        assert response.headers["Retry-After"] == "7"
    assert service.texts(session) == []


def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(serve: Serve) -> None:
    failure = BackendError("gone", kind=ErrorKind.TRANSPORT, retryable=False)
    service = serve([[_text("half"), failure]])
    session = service.session()

    frames = list(
        service.frames("POST", f"/v1/sessions/{session}/send", json={"text": "a", "stream": True})
    )

    assert [frame.event for frame in frames] == ["turn", "text", "error"]
    assert frames[-1].data["error"]["code"] == "vendor_failed"
    assert service.texts(session) == ["a", "half"]


def test_what_to_do_while_a_turn_runs_is_said_with_each_request(serve: Serve) -> None:
    hold = Hold()
    service = serve([[_text("cut"), hold], "next"])
    session = service.session()
    path = f"/v1/sessions/{session}/send"
    service.post(path, {"text": "a", "background": True})
    wait_for(hold.entered)

    refused = service.post(path, {"text": "b", "options": {"on_busy": "reject"}})
    answer = service.post(path, {"text": "c", "options": {"on_busy": "interrupt"}}).json()

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conversation_locked")
    assert answer["message"]["content"] == "next"
    assert service.texts(session) == ["a", "cut", "c", "next"]


def _text(text: str) -> object:
    from agent_context import TextDelta

    return TextDelta(text)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/sessions", {"sytem": "s"}, "sytem"),
        ("/v1/sessions", {"id": "a b"}, "id"),
        ("/v1/sessions", {"messages": [{"role": "king"}]}, None),
        ("/v1/sessions/s/send", {"text": "a", "messages": [{"role": "user"}]}, None),
        ("/v1/sessions/s/send", {"text": "a", "options": {"temprature": 1}}, None),
        ("/v1/sessions/s/messages", {"messages": []}, "messages"),
        ("/v1/sessions/s/rewind", {}, "to"),
        ("/v1/sessions/s/rewind", {"to": 9}, None),
        ("/v1/sessions/s/fork", {"message_id": "none"}, "message_id"),
    ],
)
def test_a_bad_request_is_told_what_and_where_and_changes_nothing(
    serve: Serve, path: str, body: object, param: str | None
) -> None:
    service = serve()
    service.session(id="s", messages=[{"role": "user", "content": "a"}])

    refused = service.post(path, body)

    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["type"] == "invalid_request_error"
    if param is not None:
        assert refused.json()["error"]["param"] == param
    assert service.texts("s") == ["a"]
    assert [each["id"] for each in service.get("/v1/sessions").json()["data"]] == ["s"]
