"""A tool from a typed function: what the model is told, and what the function gets."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import agent_context
from agent_context.errors import InvalidOptions, ToolError
from agent_context.tools import FunctionTool, Tool, ToolContext, tool
from tests.support.toolbox import context


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(BaseModel):
    title: str
    country: str = "IT"


@dataclasses.dataclass
class Span:
    first: int
    last: int


class Options(TypedDict, total=False):
    wind: bool


def properties(made: Tool) -> dict[str, Any]:
    found: dict[str, Any] = made.parameters["properties"]
    return found


async def called(made: FunctionTool, **arguments: object) -> object:
    return await made.call(json.dumps(arguments), context(made.name))


def test_the_tool_of_before_is_where_it_was() -> None:
    assert agent_context.Tool is Tool
    assert Tool.model_validate({"function": {"name": "f"}}) == Tool(name="f")


def test_a_function_becomes_a_tool() -> None:
    @tool
    def weather(city: str, days: int = 3) -> str:
        """Forecast the weather."""
        return f"{city}: sun for {days} days"

    assert weather.spec == Tool(
        name="weather",
        description="Forecast the weather.",
        parameters={
            "additionalProperties": False,
            "properties": {
                "city": {"type": "string"},
                "days": {"default": 3, "type": "integer"},
            },
            "required": ["city"],
            "type": "object",
        },
    )
    assert weather("Rome") == "Rome: sun for 3 days"


def test_what_only_the_program_needs_is_not_told() -> None:
    made = tool(lambda: None, name="f", timeout=3, approval="require", max_result=10)

    assert made.model_dump(exclude_none=True).keys() == {"name", "description", "parameters"}


GOOGLE = """Find it.

More about it.

Args:
    city: The city,
        in English.
    days: How many.

Returns:
    What was found.
"""
NUMPY = """Find it.

More about it.

Parameters
----------
city : str
    The city,
    in English.
days : int
    How many.
"""
SPHINX = """Find it.

More about it.

:param city: The city,
    in English.
:param days: How many.
:returns: What was found.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX])
def test_docstrings_of_three_styles_describe_the_parameters(text: str) -> None:
    def find(city: str, days: int) -> None: ...

    find.__doc__ = text
    made = tool(find)

    assert made.description == "Find it.\n\nMore about it."
    assert properties(made)["city"]["description"] == "The city, in English."
    assert properties(made)["days"]["description"] == "How many."


def test_an_annotation_describes_better_than_the_docstring() -> None:
    @tool
    def find(
        a: Annotated[str, Field(description="from the field")],
        b: Annotated[str, "from the text"],
        c: str = Field(default="x", description="from the default"),
    ) -> str:
        """Find.

        Args:
            a: no
            b: no
        """
        return f"{a}{b}{c}"

    said = {name: item["description"] for name, item in properties(find).items()}

    assert said == {"a": "from the field", "b": "from the text", "c": "from the default"}


async def test_a_default_made_by_pydantic_reaches_the_function() -> None:
    @tool
    def find(c: str = Field(default="x")) -> str:
        return c

    assert await called(find) == "x"


async def test_json_becomes_what_the_annotations_say() -> None:
    seen: list[object] = []

    @tool
    def take(
        unit: Unit,
        place: Place,
        span: Span,
        options: Options,
        mode: Literal["fast", "slow"],
        days: set[int],
        other: str | None = None,
    ) -> None:
        seen.extend([unit, place, span, options, mode, days, other])

    await called(
        take,
        unit="C",
        place={"title": "Rome"},
        span={"first": 1, "last": "2"},
        options={"wind": True},
        mode="fast",
        days=[1, 1, 2],
    )

    assert seen == [
        Unit.CELSIUS, Place(title="Rome"), Span(1, 2), {"wind": True}, "fast", {1, 2}, None
    ]  # fmt: skip


def test_a_property_called_title_stays_and_titles_go() -> None:
    @tool
    def take(place: Place, title: str) -> None: ...

    assert "title" in properties(take)
    assert take.parameters["$defs"]["Place"]["properties"].keys() == {"title", "country"}
    assert '"title": "' not in json.dumps(take.parameters)


def place_of(a: "Place | None", b: "list[Unit]") -> "Nowhere": ...  # type: ignore[name-defined] # noqa: F821


async def test_annotations_may_be_written_as_text() -> None:
    assert properties(tool(place_of))["b"] == {"items": {"$ref": "#/$defs/Unit"}, "type": "array"}


async def test_parameters_may_have_any_name() -> None:
    @tool
    def take(json: str, _hidden: int, model_config: int, copy: int = 0, /, schema: int = 1) -> str:
        return f"{json} {_hidden} {model_config} {copy} {schema}"

    assert await called(take, json="x", _hidden=1, model_config=2, schema=5) == "x 1 2 0 5"


async def test_a_default_keeps_its_identity() -> None:
    nothing = object()

    @tool
    def take(a: Any = nothing) -> bool:
        return a is nothing

    assert await called(take) is True


def test_the_schema_is_the_same_in_every_process() -> None:
    program = (
        "import json; from agent_context.tools import tool\n"
        "def f(a: set[str] = {'x', 'y', 'z', 'q'}, b: frozenset[int] = frozenset({1, 2})): ...\n"
        "print(json.dumps(tool(f).model_dump()))"
    )

    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(said) == 1


async def test_the_context_is_injected_and_not_told() -> None:
    @tool
    def who(a: int, ctx: ToolContext, *, more: ToolContext | None = None) -> str:
        return f"{a} {ctx.call_id} {more is ctx} {ctx.cancelled}"

    assert list(properties(who)) == ["a"]
    assert await called(who, a=1) == "1 c1 True False"


class Counter:
    """Counts up."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, by: int) -> int:
        """Add to it."""
        self.value += by
        return self.value

    def __call__(self, by: int) -> int:
        return self.add(by)

    @tool
    async def decorated(self, by: int) -> int:
        """Add to it, too."""
        return self.add(by)


async def test_methods_partials_and_objects_are_functions_too() -> None:
    counter = Counter()

    def scaled(factor: int, by: int) -> int:
        return factor * by

    assert await called(tool(counter.add), by=2) == 2
    assert await called(tool(counter), by=2) == 4
    assert await called(counter.decorated, by=2) == 6
    assert await called(tool(partial(scaled, 10)), by=2) == 20
    assert tool(counter).name == "Counter"
    assert tool(counter).description == "Counts up."
    assert tool(partial(scaled, 10)).name == "scaled"


async def test_a_method_without_its_object_says_so() -> None:
    with pytest.raises(ToolError, match="take it from an instance"):
        await called(Counter.decorated, by=2)


async def test_a_synchronous_function_leaves_the_loop_alone() -> None:
    @tool
    def where() -> str:
        return threading.current_thread().name

    assert str(await called(where)).startswith("agent-context-tools-")


async def test_a_function_that_returns_something_to_await_is_awaited() -> None:
    async def later(word: str) -> str:
        return word

    assert await called(tool(lambda: later("late"), name="f")) == "late"


def many(*words: str) -> None: ...
def named(**words: str) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
def unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821
def opaque(c: ToolContext, a: int, b: threading.Lock) -> None: ...
def function(a: Callable[[], int]) -> None: ...


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (many, r"'many'.*\*words"),
        (named, r"'named'.*\*\*words"),
        (bare, "parameter 'a' has no annotation"),
        (unknown, "'Nowhere' of parameter 'a' can't be read"),
        (opaque, "'opaque': parameter 'b': no JSON"),
        (function, "'function'.*no JSON schema"),
        (lambda: None, "give another by name="),
        (print, r"\*args"),
    ],
)
def test_what_cannot_be_told_is_refused_at_decoration(target: Any, said: str) -> None:
    with pytest.raises(InvalidOptions, match=said):
        tool(target)


@pytest.mark.parametrize("name", ["", "two words", "Ünicode", "x" * 65])
def test_a_name_that_no_vendor_takes_is_refused(name: str) -> None:
    with pytest.raises(InvalidOptions, match="1 to 64 letters"):
        tool(lambda: None, name=name)


def test_a_strict_schema_requires_everything() -> None:
    @tool(strict=True)
    def take(a: int, place: Place | None = None) -> None: ...

    assert take.strict is True
    assert take.parameters["required"] == ["a", "place"]
    assert take.parameters["$defs"]["Place"]["required"] == ["title", "country"]


def test_a_strict_schema_says_what_it_cannot_say() -> None:
    def take(table: dict[str, int]) -> None: ...

    with pytest.raises(InvalidOptions, match=r"'take'.*no dict.*at `\$\.table`"):
        tool(take, strict=True)


@tool
def flight(
    start: str, seats: Annotated[int, Field(ge=1, le=9)] = 1, stops: list[str] | None = None
) -> str:
    """Book a flight."""
    return f"{start} {seats} {stops}"


@pytest.mark.parametrize("text", ["{}", "", "  ", "null", '""'])
async def test_no_arguments_are_an_empty_object(text: str) -> None:
    made = tool(lambda: "ran", name="f")

    assert await made.call(text, context()) == "ran"


async def test_json_that_was_packed_into_strings_is_unpacked() -> None:
    inner = json.dumps({"start": "FCO", "stops": json.dumps(["MUC"])})

    assert await flight.call(json.dumps(inner), context()) == "FCO 1 ['MUC']"


async def test_text_that_looks_like_json_stays_text_where_text_is_wanted() -> None:
    assert await called(flight, start='["FCO"]') == '["FCO"] 1 None'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"start": "FCO"', "not valid JSON: Expecting ',' delimiter.*near"),
        ("[1, 2]", r"must be one JSON object; got \[1, 2\]"),
        ("{}", "- start: is required and missing"),
        ('{"start": "F", "seats": 12}', "- seats: .* less than or equal to 9; got 12"),
        ('{"start": "F", "seat": 1}', "- seat: .*arguments are start, seats, stops"),
        ('{"start": "F", "stops": "[3]"}', r"- stops: .* valid array; got .\[3\]"),
        ('{"start": "F", "stops": ["a", 3]}', r"- stops\.1: .* valid string; got 3"),
    ],
)
async def test_wrong_arguments_are_told_with_place_and_value(text: str, said: str) -> None:
    with pytest.raises(ToolError, match=said):
        await flight.call(text, context())


@given(st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_either_arguments_or_a_complaint(text: str) -> None:
    with contextlib.suppress(ToolError):
        assert isinstance(json.loads(flight.normalize(text)), dict)
