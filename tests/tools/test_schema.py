"""Schemas: said once, and in the words of the strict mode where they must be."""

from typing import Annotated, Literal

import pytest
from pydantic import AnyUrl, BaseModel, Field

from agent_context.errors import InvalidOptions
from agent_context.tools.schema import json_schema, strict_schema, strip_titles


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    page: AnyUrl


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


def test_choices_are_said_with_the_one_word_there_is() -> None:
    schema = strict_schema(json_schema(Owner))

    pet = {"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}
    assert schema["properties"] == {"pet": pet}
    assert schema["$defs"]["Dog"]["properties"]["page"] == {"type": "string"}


def test_a_schema_alone_in_a_list_of_all_is_the_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"allOf": [{"type": "string"}]}}}

    assert strict_schema(schema)["properties"] == {"a": {"type": "string"}}


@pytest.mark.parametrize(
    ("inner", "where"),
    [
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "$.a"),
        ({"anyOf": [{"type": "string"}, {}]}, r"$.a.anyOf\[1\]"),
        ({"type": "array", "items": {"type": "object", "additionalProperties": True}}, "$.a.items"),
    ],
)
def test_the_place_of_what_cannot_be_said_is_named(inner: dict[str, object], where: str) -> None:
    schema = {"type": "object", "properties": {"a": inner}}

    with pytest.raises(InvalidOptions, match=where.replace("$.", r"\$\.") + "`"):
        strict_schema(schema)


def test_the_schema_that_is_given_stays_as_it_is() -> None:
    schema = json_schema(Owner)
    before = repr(schema)

    strict_schema(schema)
    strip_titles(schema)

    assert repr(schema) == before


def test_being_strict_twice_is_being_strict() -> None:
    once = strict_schema(json_schema(Owner))

    assert strict_schema(once) == once
