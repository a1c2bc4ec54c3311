"""What providers add, as a fold over their results."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context import Message, Tool
from agent_context.errors import InvalidOptions, UsageError
from agent_context.providers import ContextResult, SessionContext

RESULTS = st.builds(
    ContextResult,
    instructions=st.none() | st.text(max_size=3),
    messages=st.lists(st.text(max_size=3).map(Message.user), max_size=3),
    tools=st.lists(st.sampled_from("abc").map(lambda name: Tool(name=name)), max_size=2),
    replace_messages=st.booleans(),
)


@given(st.lists(RESULTS, max_size=6))
def test_results_are_folded_in_order(results: list[ContextResult]) -> None:
    context = SessionContext()
    messages: list[Message] = []

    for number, result in enumerate(results):
        context.add(f"p{number}", result)
        messages = [*([] if result.replace_messages else messages), *result.messages]

    assert context.get_messages() == messages
    assert context.instructions == [r.instructions for r in results if r.instructions]
    assert context.tools == [tool for result in results for tool in result.tools]


@given(st.lists(RESULTS, max_size=3), st.lists(RESULTS, max_size=3))
def test_what_is_taken_back_was_never_there(
    kept: list[ContextResult], taken_back: list[ContextResult]
) -> None:
    context, other = SessionContext(), SessionContext()
    for number, result in enumerate(kept):
        context.add(f"p{number}", result)
        other.add(f"p{number}", result)
    before = context.snapshot()

    for result in taken_back:
        context.add("p0", result)
    context.restore(before)

    assert context.snapshot() == other.snapshot()
    assert context.get_messages() == other.get_messages()


def test_messages_can_be_asked_for_by_source() -> None:
    context = SessionContext(input_messages=[Message.user("question")])
    for source in "abc":
        context.extend_messages(source, [Message.user(source)])

    def said(**wanted: object) -> str:
        return "".join(m.text[0] for m in context.get_messages(**wanted))  # type: ignore[arg-type]

    assert said() == "abc"
    assert said(sources=["c", "a"]) == "ac"
    assert said(exclude_sources=["b"]) == "ac"
    assert said(sources=[], include_input=True) == "q"


def test_what_is_no_message_tool_or_result_is_refused() -> None:
    context = SessionContext()

    with pytest.raises(InvalidOptions, match="message: Message expected, not str"):
        context.extend_messages("p", ["text"])  # type: ignore[list-item]
    with pytest.raises(InvalidOptions, match="tool: Tool expected, not str"):
        context.extend_tools("p", ["text"])  # type: ignore[list-item]
    with pytest.raises(InvalidOptions, match="result: ContextResult expected, not dict"):
        context.add("p", {"instructions": "x"})  # type: ignore[arg-type]

    assert context.get_messages() == []


def test_a_shortened_history_goes_out_in_the_place_of_the_conversations_own() -> None:
    context = SessionContext()
    context.set_history("history", [Message.user("a"), Message.user("b")], stored=True)
    context.extend_messages("memory", [Message.user("m")])

    context.shorten_history([Message.user("b")])

    assert [message.text for message in context.get_messages()] == ["b", "m"]
    assert context.history_replaced_from == "history"
    assert context.conversation_source is None


def test_no_history_is_shortened_that_is_not_there() -> None:
    context = SessionContext()
    with pytest.raises(UsageError, match="no history was loaded in this run"):
        context.shorten_history([])

    context.set_history("history", [Message.user("a")])
    context.replace_messages("other", [Message.user("b")])
    with pytest.raises(UsageError, match="or something took its place"):
        context.shorten_history([])
