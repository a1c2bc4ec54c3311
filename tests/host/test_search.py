"""What was said is found in whichever conversation it was said."""

from __future__ import annotations

from typing import Any

import pytest

from agent_context import Append, Host, Message
from agent_context.errors import InvalidOptions
from agent_context.protocol import Remove
from agent_context.stores.store import Store
from tests.host.conftest import Start


def say(host: Host, name: str, *texts: str) -> None:
    for text in texts:
        host.get(name).ask(Append(Message.user(text)))


def found(host: Host, text: str, **options: Any) -> list[tuple[str, str]]:
    entries = host.search(text, **options)
    return [(entry.conversation_id, entry.message.text) for entry in entries]


@pytest.fixture
def host(store: Store, start: Start) -> Host:
    made = start(store)
    say(made, "a/ann", "My locker is green.", "It rains.", "A locker is a box.")
    say(made, "a/bob", "The code of my locker is 7731.", "It snows.")
    say(made, "b/carl", "My locker was painted blue by my sister last week.", "No.")
    return made


def test_the_best_of_all_conversations_comes_first(host: Host) -> None:
    names = [name for name, _ in found(host, "What is the code of the locker?")]

    assert names == ["a/bob", "a/ann", "a/ann", "b/carl"]
    assert len(found(host, "locker", limit=2)) == 2


def test_a_prefix_keeps_to_the_conversations_of_one_tenant(host: Host) -> None:
    assert {name for name, _ in found(host, "locker code", prefix="a/")} == {"a/ann", "a/bob"}
    assert {name for name, _ in found(host, "locker code", prefix="b/carl")} == {"b/carl"}
    assert found(host, "locker", prefix="c/") == []


def test_what_was_removed_and_what_a_fork_shares_is_found_once(host: Host) -> None:
    host.get("a/bob").ask(Remove(0))
    host.fork("a/bob")

    assert found(host, "7731") == [("a/bob", "The code of my locker is 7731.")]


def test_what_makes_no_sense_is_refused(host: Host) -> None:
    with pytest.raises(InvalidOptions, match="limit: a number from 1 on, not 0"):
        host.search("x", limit=0)
