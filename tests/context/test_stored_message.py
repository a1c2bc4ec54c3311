"""A record is its message: nothing is lost on the way to rest and back."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context._context.stored_message import from_message, parse_message, with_id
from agent_context.errors import InvalidMessage
from agent_context.messages import Message, OpaquePart, TextPart, ToolCall
from tests.histories import messages
from tests.support.examples import examples

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
unknown = st.dictionaries(st.sampled_from(["x", "cache", "refusal", "annotations"]), json_values)
plain = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@examples(3)
@given(plain, unknown, unknown, unknown)
def test_unknown_fields_survive_wherever_they_are(
    text: str, outer: dict[str, object], part: dict[str, object], call: dict[str, object]
) -> None:
    message = Message.model_validate(
        {
            "role": "assistant",
            "parts": [
                TextPart.model_validate({"text": text, **part}),
                OpaquePart(data={"type": "x", **outer}),
            ],
            "tool_calls": [ToolCall(id="a", name="f", arguments="[", **call)],
            **outer,
        }
    )

    record = from_message(message)

    assert record.message == message
    assert record.message.extra == outer
    assert from_message(record.message).body == record.body


@examples(3)
@given(messages)
def test_a_record_is_stable(message: Message) -> None:
    record = from_message(message)

    again = from_message(record.message)

    assert (again.id, again.role, again.body, again.call_ids) == (
        record.id,
        record.role,
        record.body,
        record.call_ids,
    )


@examples(2)
@given(messages)
def test_a_line_reads_back_as_the_message(message: Message) -> None:
    record = from_message(message)

    read = parse_message(record.to_json_line())

    assert read.id == message.id
    assert from_message(read).body == record.body


def test_a_field_of_ours_is_not_overwritten_by_an_unknown_one_of_its_name() -> None:
    both = {"role": "user", "parts": [TextPart(text="kept")], "content": "lost"}

    record = from_message(Message.model_validate(both))

    assert orjson.loads(record.body) == {"role": "user", "content": "kept"}


def test_another_id_is_all_that_changes() -> None:
    record = from_message(Message.tool("a", "done"))

    other = with_id(record, "new")

    assert (other.id, other.role, other.call_ids) == ("new", record.role, ("a",))
    assert other.body is record.body


def test_what_is_not_json_is_not_a_message() -> None:
    with pytest.raises(InvalidMessage, match="not JSON"):
        parse_message("{")
    with pytest.raises(InvalidMessage, match="can't be written as JSON"):
        from_message(Message.model_validate({"role": "user", "content": "x", "extra": object()}))


def test_an_unknown_field_with_fields_of_its_own_makes_no_result_interim() -> None:
    nested = Message.model_validate(
        {"role": "tool", "tool_call_id": "a", "content": "x", "meta": {"interim": True}}
    )
    assert not from_message(nested).interim
    assert from_message(Message.tool("a", "x", interim=True)).interim
