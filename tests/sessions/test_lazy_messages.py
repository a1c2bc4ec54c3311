"""Sequences of messages that are built when they are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import Message, Role
from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zones
from agent_context.sessions.lazy_messages import ChainedMessages, ConversationMessages

TEXTS = st.lists(st.text(max_size=3), max_size=70)


def vector(texts: list[str]) -> PersistentVector:
    return PersistentVector.of(from_message(Message.user(text)) for text in texts)


@given(TEXTS, TEXTS, st.integers(-150, 150), st.integers(-150, 150))
def test_what_was_said_reads_like_a_list(old: list[str], new: list[str], a: int, b: int) -> None:
    said = ConversationMessages(Zones(vector(["fixed"]), vector(old), vector(new)))
    whole = [*old, *new]

    assert [message.text for message in said] == whole
    assert [message.text for message in reversed(said)] == whole[::-1]
    assert len(said) == len(whole)
    assert [message.text for message in said[a:b]] == whole[a:b]
    if -len(whole) <= a < len(whole):
        assert said[a].text == whole[a]
    else:
        with pytest.raises(IndexError):
            _ = said[a]


def test_a_summary_is_words_of_the_assistant() -> None:
    summary = PersistentVector.of([from_message(Message.system("So far."))])

    [message] = ConversationMessages(Zones(compressed=summary))

    assert (message.role, message.text) == (Role.ASSISTANT, "So far.")


def test_it_knows_the_ids_that_it_holds() -> None:
    messages = [Message.user("a"), Message.user("b")]
    said = ConversationMessages(Zones(incremental=PersistentVector.of(map(from_message, messages))))

    assert said.holds(frozenset({messages[1].id, "unknown"})) == {messages[1].id}


@given(st.lists(TEXTS, max_size=4))
def test_joined_sequences_read_like_one(parts: list[list[str]]) -> None:
    made = [[Message.user(text) for text in part] for part in parts]
    whole = [message for part in made for message in part]

    joined = ChainedMessages(*made)

    assert list(joined) == whole
    assert len(joined) == len(whole)
    assert [joined[index] for index in range(-len(whole), len(whole))] == [*whole, *whole]


def test_joined_keeps_what_a_list_was() -> None:
    part = [Message.user("a")]
    joined = ChainedMessages(part)

    part.clear()

    assert len(joined) == 1
