"""Rendering from a cache gives the bytes that rendering from nothing gives."""

import json
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zones
from agent_context.messages import ImagePart, Message, OpaquePart, Origin, ToolCall
from agent_context.wire import rendering
from agent_context.wire.dialect import Dialect
from agent_context.wire.rendering import RequestRenderer, render
from agent_context.wire.repair import repair_history
from tests.histories import (
    DEEPSEEK,
    DIALECTS,
    ITEM_DIALECTS,
    OPENAI,
    ZHIPU,
    ZHIPU_ITEMS,
    asking,
    histories,
    records,
    result,
    said,
    user,
    zones_of,
)

EDITS = ["append", "append", "append", "append", "extend", "insert", "update", "remove", "rewind"]
TEMPLATE = Dialect(
    name="template", vendor="", needs_user=True, merge_same_role=True, late_system_role="user"
)
HEAD = {"model": "m", "stream": True}


def edited(zones: Zones, edit: str, data: DataObject) -> Zones:
    length = len(zones.incremental)
    at = data.draw(st.integers(max(0, length - 4), length))
    match edit:
        case "append":
            return zones.append(data.draw(records))
        case "extend":
            return zones.extend(data.draw(histories))
        case "insert":
            return zones.insert(at, [data.draw(records)])
        case "update" if at < length:
            return zones.update(at, data.draw(records))
        case "remove" if at < length:
            return zones.remove(at)
        case "rewind":
            return zones.truncate(at)
        case _:
            return zones


def expected(zones: Zones, trailing: list[StoredMessage], dialect: Dialect) -> bytes:
    """The body, written down plainly."""
    legal = repair_history([*zones, *trailing], dialect)
    pieces = [render(record, dialect, late=at > 0) for at, record in enumerate(legal)]
    said = b",".join(piece for piece in pieces if piece)
    return b'{"model":"m","stream":true,"%s":[%s]}' % (dialect.list_name.encode(), said)


@pytest.mark.parametrize(
    "dialect", [*DIALECTS, TEMPLATE, *ITEM_DIALECTS], ids=lambda dialect: str(dialect.name)
)
@given(
    histories,
    histories,
    st.lists(st.tuples(st.sampled_from(EDITS), st.lists(records, max_size=2)), max_size=10),
    st.data(),
)
def test_what_was_rendered_before_does_not_show(
    dialect: Dialect,
    preset: list[StoredMessage],
    start: list[StoredMessage],
    steps: list[tuple[str, list[StoredMessage]]],
    data: DataObject,
) -> None:
    cache, zones = (
        RequestRenderer(),
        Zones(PersistentVector.of(preset), incremental=PersistentVector.of(start)),
    )

    for edit, trailing in steps:
        zones = edited(zones, edit, data)
        assert cache.body(HEAD, zones, trailing, dialect) == expected(zones, trailing, dialect)


def test_a_call_that_was_merged_into_another_zone_may_be_removed() -> None:
    cache, zones = RequestRenderer(), Zones(PersistentVector.of([said("kept")]))
    calling = zones.append(asking("a"))
    cache.body(HEAD, calling, (), ZHIPU)

    without = calling.remove(0)

    assert cache.body(HEAD, without, (), ZHIPU) == expected(without, [], ZHIPU)


@pytest.mark.parametrize("dialect", [ZHIPU, ZHIPU_ITEMS])
def test_a_rewind_between_two_messages_that_were_merged_shows(dialect: Dialect) -> None:
    cache, zones = RequestRenderer(), zones_of([user(), said(), asking("a"), result("a")])
    cache.body(HEAD, zones, (), dialect)

    back = zones.truncate(2)

    assert cache.body(HEAD, back, (), dialect) == expected(back, [], dialect)


def test_what_is_missing_is_what_came_since() -> None:
    cache, zones = RequestRenderer(), zones_of([user(), said(), user(), said()])
    before = cache.missing(zones)
    cache.body(HEAD, zones, (), OPENAI)

    assert before == 4
    assert cache.missing(zones.append(user())) <= 2
    assert cache.missing(zones.remove(0)) == 3


def test_another_dialect_or_a_compression_renders_anew() -> None:
    cache, zones = RequestRenderer(), zones_of([user(), said(), user()])
    compressed = zones.compress(
        PersistentVector.of([said("summary")]), PersistentVector.of([user("last")])
    )

    for each, dialect in [(zones, DEEPSEEK), (zones, ZHIPU), (compressed, ZHIPU)]:
        assert cache.body(HEAD, each, (), dialect) == expected(each, [], dialect)


@pytest.mark.parametrize("dialect", DIALECTS + ITEM_DIALECTS, ids=lambda dialect: str(dialect.name))
def test_a_request_begins_as_the_one_before_it(dialect: Dialect) -> None:
    cache, zones = RequestRenderer(), zones_of([from_message(Message.system("be brief"))])
    scratch = [from_message(Message.system("it is noon"))]
    previous = b""

    for _ in range(5):
        for turn in ([user()], [asking("a", "b"), result("b"), result("a")], [said()]):
            zones = zones.extend(turn)
            stored = cache.body(HEAD, zones, (), dialect).removesuffix(b"]}")
            assert stored.startswith(previous)
            assert cache.body(HEAD, zones, scratch, dialect).startswith(stored)
            previous = stored


def test_only_what_is_new_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[StoredMessage] = []

    def counting(record: StoredMessage, dialect: Dialect, *, late: bool) -> bytes:
        counted.append(record)
        return render(record, dialect, late=late)

    cache, zones, last = RequestRenderer(), zones_of([user(), said()] * 500), user("new")
    cache.body(HEAD, zones, (), DEEPSEEK)
    monkeypatch.setattr(rendering, "render", counting)

    cache.body(HEAD, zones.append(last), (), DEEPSEEK)

    assert counted == [last]


def test_what_was_forgotten_is_rendered_again() -> None:
    cache, zones = RequestRenderer(), zones_of([user(), said()])
    before = cache.body(HEAD, zones, (), DEEPSEEK)

    cache.forget()

    assert cache.body(HEAD, zones, (), DEEPSEEK) == before


def test_a_turn_and_a_compression_may_render_at_once() -> None:
    cache, zones = RequestRenderer(), zones_of([user(), said()])
    wrong: list[bytes] = []

    def render(trailing: list[StoredMessage], mine: Zones) -> None:
        for _ in range(50):
            mine = mine.extend([user(), said()])
            body = cache.body(HEAD, mine, trailing, ZHIPU)
            if body != expected(mine, trailing, ZHIPU):
                wrong.append(body)

    threads = [Thread(target=render, args=([user("sum up")] * n, zones)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_the_messages_come_last_whatever_the_head_says() -> None:
    body = RequestRenderer().body({"messages": [], "model": "m"}, zones_of([user()]), (), DEEPSEEK)

    assert body == b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def wire(message: Message, dialect: Dialect) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(render(from_message(message), dialect))
    return fields


THOUGHT = Message.model_validate(
    {
        "role": "assistant",
        "content": "hi",
        "reasoning": "hm",
        "interrupted": True,
        "finish_reason": "stop",
        "origin": Origin(vendor="deepseek"),
        "vendor_field": 1,
    }
)


def test_a_plain_message_is_the_stored_bytes() -> None:
    record = result("a")

    assert render(record, OPENAI) is record.body


def test_reasoning_goes_back_to_where_it_came_from_alone() -> None:
    assert wire(THOUGHT, DEEPSEEK)["reasoning_content"] == "hm"
    assert wire(THOUGHT, OPENAI) == wire(THOUGHT, ZHIPU) == {"role": "assistant", "content": "hi"}


def test_fields_of_ours_never_go_out() -> None:
    assert set(wire(THOUGHT, DEEPSEEK)) == {"role", "content", "reasoning_content", "vendor_field"}


def test_calls_without_reasoning_carry_an_empty_one_where_it_is_demanded() -> None:
    message = asking("a").message

    assert wire(message, DEEPSEEK)["reasoning_content"] == ""
    assert "reasoning_content" not in wire(message, ZHIPU)
    assert wire(message, DEEPSEEK)["content"] == ""


def test_instructions_have_the_role_that_the_dialect_says() -> None:
    assert wire(Message.system("x"), OPENAI) == {"role": "developer", "content": "x"}


def test_names_go_out_only_where_they_are_known() -> None:
    message = Message.user("x", name="ann")

    assert wire(message, OPENAI) == {"role": "user", "content": "x", "name": "ann"}
    assert wire(message, ZHIPU) == {"role": "user", "content": "x"}


DATA = "data:image/png;base64,AAAA"
AUDIO: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}


def left_out(what: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": f"[{what} left out: it can't be sent to this model]"}]


def test_images_go_out_without_their_size() -> None:
    image = {"url": DATA, "detail": "low"}
    message = Message.user([ImagePart.model_validate({**image, "width": 1, "height": 2})])

    assert wire(message, OPENAI)["content"] == [{"type": "image_url", "image_url": image}]


@pytest.mark.parametrize("url", ["file:///x.png", "data:x", "x.png", ""])
def test_an_image_that_no_server_can_fetch_is_told_in_words(url: str) -> None:
    assert wire(Message.user([ImagePart(url=url)]), OPENAI)["content"] == left_out("image")


def test_what_a_model_cannot_see_or_hear_is_told_in_words() -> None:
    image, audio = Message.user([ImagePart(url=DATA)]), Message.user([OpaquePart(data=AUDIO)])
    deaf = replace(OPENAI, other_parts=frozenset({"file"}))

    assert wire(image, ZHIPU)["content"] == left_out("image")
    assert wire(Message.assistant([ImagePart(url=DATA)]), OPENAI)["content"] == left_out("image")
    assert wire(audio, OPENAI)["content"] == [AUDIO]
    assert wire(audio, deaf)["content"] == left_out("audio")


@pytest.mark.parametrize(("name", "legal"), [("a.b", "a_b"), ("", "unknown"), ("x" * 70, "x" * 64)])
def test_names_that_no_api_takes_are_made_legal(name: str, legal: str) -> None:
    called = Message.assistant(tool_calls=[ToolCall(id="1", name=name)])

    assert wire(called, OPENAI)["tool_calls"][0]["function"]["name"] == legal
    assert wire(Message.user("x", name="ann lee"), OPENAI)["name"] == "ann_lee"


def test_unknown_fields_of_a_call_stay_with_their_vendor() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}, "signature": "s"}
    fields = {"role": "assistant", "content": None, "tool_calls": [call]}
    message = Message.model_validate({**fields, "origin": {"vendor": "deepseek"}})

    assert wire(message, DEEPSEEK)["tool_calls"][0]["signature"] == "s"
    assert set(wire(message, OPENAI)["tool_calls"][0]) == {"id", "type", "function"}


def test_what_a_merged_message_grew_by_is_forgotten_with_it() -> None:
    cache, before = RequestRenderer(), [user(), said("1")]
    cache.body(HEAD, zones_of([*before, asking("a")]), [], ZHIPU)

    # The same records as before, so that the cache is asked for them.
    assert cache.body(HEAD, zones_of(before), [], ZHIPU) == expected(zones_of(before), [], ZHIPU)
