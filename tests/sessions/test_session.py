"""Sessions: what is written down comes back, and requests are told apart."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import AgentSession, Message, Tool, ToolCall
from agent_context.errors import InvalidOptions
from agent_context.sessions.session import count_shared_links, request_chain

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes().map(lambda when: when.replace(fold=0))
)
KEYS = st.text(max_size=5) | st.just("__type__") | st.just("type")
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


def written_and_read(session: AgentSession) -> AgentSession:
    return AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))


@pytest.mark.behaviour(105)
@given(state=st.dictionaries(KEYS, VALUES, max_size=3))
def test_whatever_a_program_keeps_comes_back_as_what_it_was(state: dict[str, Any]) -> None:
    again = written_and_read(AgentSession("s", state=state))

    assert again.state == state
    assert repr(again.state) == repr(state)


@pytest.mark.behaviour(105)
def test_messages_sets_and_numbers_without_a_value_come_back() -> None:
    message = Message.assistant("hi", tool_calls=[ToolCall(id="c", name="look")])
    state: dict[str, Any] = {
        "m": message,
        "s": {1, 2},
        "f": frozenset("a"),
        "n": math.nan,
        "i": -math.inf,
    }
    state["d"] = datetime(2026, 1, 1, tzinfo=UTC)

    again = written_and_read(AgentSession(state=state)).state

    assert math.isnan(again.pop("n"))
    assert state.pop("n")
    assert again == state


@pytest.mark.behaviour(105)
def test_a_dict_that_looks_like_a_message_stays_a_dict() -> None:
    state = {"x": {"type": "message", "role": "user"}, "y": {"__type__": "message", "value": {}}}

    assert written_and_read(AgentSession(state=state)).state == state


@pytest.mark.behaviour(105)
def test_what_can_not_be_kept_is_named() -> None:
    session = AgentSession(state={"memory": {"items": [1, object()]}})

    with pytest.raises(InvalidOptions, match=r"state\['memory'\]\['items'\]\[1\]: a object"):
        session.to_dict()


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "session", "session_id": 1, "state": {}},
        {"type": "session", "session_id": "s", "state": {"x": {"__type__": "unheard of"}}},
        {"type": "session", "session_id": "s", "state": {"x": {"__type__": "bytes", "value": "é"}}},
        {"type": "session", "session_id": "s", "state": {"x": {"__type__": "set", "items": [[]]}}},
    ],
)
def test_what_is_no_session_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptions):
        AgentSession.from_dict(data)


def test_a_providers_place_that_holds_something_else_is_named() -> None:
    session = AgentSession(state={"memory": 7})

    with pytest.raises(InvalidOptions, match="it holds a int: use another key"):
        session.provider_state("memory")


SAID = [
    Message.system("base"),
    Message.user("hello"),
    Message.assistant("", tool_calls=[ToolCall(id="c", name="look", arguments='{"a": 1}')]),
    Message.tool("c", "seen"),
]


def changed(index: int, **fields: object) -> list[Message]:
    message = Message.from_dict({**SAID[index].to_dict(), **fields})
    return [*SAID[:index], message, *SAID[index + 1 :]]


@pytest.mark.behaviour(40)
def test_the_hash_is_of_what_is_sent_and_not_of_ids() -> None:
    again = [Message.from_dict({**m.to_dict(), "id": f"other{n}"}) for n, m in enumerate(SAID)]

    assert request_chain(again) == request_chain(SAID)


@pytest.mark.behaviour(40)
@pytest.mark.parametrize(
    "other",
    [
        changed(1, role="assistant"),
        changed(1, parts=[{"kind": "text", "text": "hello!"}]),
        changed(2, tool_calls=[{"id": "c", "name": "look", "arguments": '{"a": 2}'}]),
        changed(2, tool_calls=[{"id": "d", "name": "look", "arguments": '{"a": 1}'}]),
        changed(3, tool_call_id="d"),
        SAID[:-1],
        [SAID[0], *reversed(SAID[1:])],
    ],
)
def test_any_change_of_what_is_sent_changes_the_hash(other: list[Message]) -> None:
    assert request_chain(other)[-1] != request_chain(SAID)[-1]


def test_tools_and_fields_stand_at_the_front_of_the_chain() -> None:
    plain = request_chain(SAID)

    assert count_shared_links(plain, request_chain(SAID, tools=[Tool(name="look")])) == 1
    assert count_shared_links(plain, request_chain(SAID, fields={"model": "m"})) == 0
    assert request_chain(SAID, fields={"a": 1, "b": 2}) == request_chain(
        SAID, fields={"b": 2, "a": 1}
    )


@given(st.lists(st.text(), max_size=6), st.integers(0, 6))
def test_a_chain_begins_with_the_chain_of_what_was_sent_before(said: list[str], n: int) -> None:
    messages = [Message.user(text) for text in said]

    chain = request_chain(messages)

    assert chain[: len(said[:n]) + 2] == request_chain(messages[:n])


@pytest.mark.behaviour(102)
def test_the_hash_is_the_same_in_every_process() -> None:
    program = (
        "from agent_context import AgentSession, Message\n"
        "session = AgentSession()\n"
        "session.touch_request_hash([Message.user('hello')], fields={'model': 'm'})\n"
        "print(session.get_last_request_hash())"
    )
    session = AgentSession()
    session.touch_request_hash([Message.user("hello")], fields={"model": "m"})

    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert other.stdout.strip() == session.get_last_request_hash()
