"""A type is asked for in the vendor's best way, and read from what the model writes."""

import contextlib
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from agent_context.backend import ContextBackend
from agent_context.errors import InvalidOptions, InvalidOutput
from agent_context.options import SendOptions
from agent_context.structured_output import (
    output_instructions,
    output_schema,
    parse_output,
    response_format_for,
)
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.openai_compatible import QwenBackend
from agent_context_backends.scripted import ScriptedBackend
from agent_context_backends.zhipu import ZhipuBackend


class Stop(BaseModel):
    """Where it stops."""

    title: str = Field(min_length=1)
    at: dt.date | None = None


class Trip(BaseModel):
    model_config = ConfigDict(strict=True)

    first: Stop = Field(description="Where it begins.")
    others: list[Stop] = []
    kind: Literal["train", "plane"] = "train"
    seats: int = Field(default=1, ge=1)


class Node(BaseModel):
    children: list["Node"] = []


class Table(BaseModel):
    cells: dict[str, int]


TRIP = Trip(first=Stop(title="Rome", at=dt.date(2026, 11, 30)))


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


def keywords(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return {word for item in schema for word in keywords(item)}
    if not isinstance(schema, dict):
        return set()
    inner = [
        list(value.values()) if key in {"properties", "$defs"} else value
        for key, value in schema.items()
    ]
    return set(schema) | keywords(inner)


@pytest.mark.parametrize("kind", [Stop, Trip, Node, list[Stop], int, Stop | Node])
def test_a_strict_schema_closes_every_object(kind: Any) -> None:
    schema = output_schema(kind)

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    for found in objects(schema):
        assert found["additionalProperties"] is False
        assert found["required"] == list(found["properties"])
    assert not keywords(schema) & {"default", "title", "minLength", "oneOf", "allOf"}


def test_nothing_stands_beside_a_reference_and_descriptions_stay() -> None:
    first = output_schema(Trip)["properties"]["first"]

    assert first == {"anyOf": [{"$ref": "#/$defs/Stop"}], "description": "Where it begins."}


@pytest.mark.parametrize(
    ("kind", "where"),
    [(Table, "$.cells"), (dict[str, int], "$"), (tuple[int, str], "$.value"), (Any, "$.value")],
)
def test_what_cannot_be_said_strictly_is_refused_with_its_place(kind: Any, where: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        output_schema(kind)

    assert f"at `{where}`" in str(caught.value)


ALL = frozenset({"text", "json_object", "json_schema"})


def test_the_best_format_is_taken() -> None:
    best = response_format_for(ALL, Stop)

    assert best is not None
    assert best["json_schema"] == {"name": "Stop", "schema": output_schema(Stop), "strict": True}
    assert response_format_for({"text", "json_object"}, Stop) == {"type": "json_object"}
    assert response_format_for({"text"}, Stop) is None


def test_a_type_that_cannot_be_strict_is_described() -> None:
    said = response_format_for(ALL, Table)

    assert said is not None
    assert said["json_schema"]["strict"] is False
    assert said["json_schema"]["schema"]["properties"]["cells"]["type"] == "object"


def test_words_say_what_the_format_does_not() -> None:
    words = output_instructions({"json_object"}, Stop)

    assert output_instructions(ALL, Stop) is None
    assert words is not None
    assert '{"title":{"minLength":1,"type":"string"}' in words
    assert "JSON" in words


class Own(ScriptedBackend):
    response_formats = ContextBackend.response_formats


@pytest.mark.parametrize(
    ("backend", "model", "formats"),
    [
        (OpenAIBackend(api_key="k"), None, ALL),
        (DeepSeekBackend(api_key="k"), None, {"text", "json_object"}),
        (DeepSeekBackend(api_key="k", api="responses"), None, ALL),
        (ZhipuBackend(api_key="k"), "glm-5.2", {"text", "json_object"}),
        (QwenBackend(api_key="k"), None, ALL),
        (ScriptedBackend(), None, ALL),
        (Own(), None, {"text"}),
    ],
)
def test_backends_say_what_they_take(
    backend: ContextBackend, model: str | None, formats: set[str]
) -> None:
    assert backend.response_formats(SendOptions(model=model)) == formats


JSON = TRIP.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"  {JSON}\n",
        f"```json\n{JSON}\n```",
        f"Here you are:\n```\n{JSON}\n```\nAnything else?",
        f"The trip is {JSON}. Enjoy!",
    ],
)
def test_an_answer_is_read_from_what_stands_around_it(text: str) -> None:
    assert parse_output(text, Trip) == TRIP


def test_a_model_that_thinks_may_take_fewer_formats() -> None:
    assert QwenBackend(api_key="k").response_formats(SendOptions(thinking=True)) == {"text"}


class Answer(BaseModel):
    answer: int


EXAMPLE = 'For example:\n```json\n{"answer": 1}\n```\n'


@pytest.mark.parametrize(
    "text",
    [
        '<think>maybe {"answer": 1}?</think>{"answer": 42}',
        '<think>\nno JSON\n</think>\n\n{"answer": 42}',
        'the tag was in the prompt: {"answer": 1}</think>{"answer": 42}',
        '<thinking>{"answer": 1}</thinking>\n```json\n{"answer": 42}\n```',
        EXAMPLE + 'The answer: {"answer": 42}',
        EXAMPLE + 'So:\n```json\n{"answer": 42}\n```\nDone {as asked}.',
        'A set {1, 2} and [x]: {"answer": 42}',
        '{"answer": 42} <think>{"answer": 1}',
        '{"answer": 42}, of {"other": [1]}',
        "{" * 5_000 + '{"answer": 42}',
    ],
)
def test_the_last_value_that_fits_is_the_answer_and_thoughts_are_none(text: str) -> None:
    assert parse_output(text, Answer).answer == 42


def test_a_tag_within_an_answer_is_a_part_of_it() -> None:
    said = Stop(title="</think>")

    assert parse_output(said.model_dump_json(), Stop) == said


def test_what_is_no_object_comes_in_one_or_alone() -> None:
    assert parse_output('{"value": [1, 2]}', list[int]) == [1, 2]
    assert parse_output("[1, 2]", list[int]) == [1, 2]
    assert parse_output("7", int) == 7
    assert parse_output("as it is", str) == "as it is"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I can't.", "- there is no JSON in it"),
        ('{"first": {"title": ""}}', '- first.title: .* at least 1 character; got ""'),
        ('{"kind": "car"}', '- first: is required and missing\n- kind: .*; got "car"'),
    ],
)
def test_a_wrong_answer_tells_the_model_what_to_mend(text: str, said: str) -> None:
    with pytest.raises(InvalidOutput, match=said):
        parse_output(text, Trip)


stops = st.builds(Stop, title=st.text(min_size=1), at=st.none() | st.dates())
trips = st.builds(Trip, first=stops, others=st.lists(stops), seats=st.integers(min_value=1))


@given(trips)
def test_what_fits_the_type_fits_the_schema_and_comes_back(trip: Trip) -> None:
    text = trip.model_dump_json()

    jsonschema.validate(json.loads(text), output_schema(Trip))
    assert parse_output(f"```json\n{text}\n```", Trip) == trip


@given(st.text())
def test_any_text_is_an_answer_or_a_complaint(text: str) -> None:
    with contextlib.suppress(InvalidOutput):
        assert isinstance(parse_output(text, Trip), Trip)
