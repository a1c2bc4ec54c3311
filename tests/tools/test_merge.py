"""Tools of an agent and of its providers become one list."""

import logging

import pytest

from agent_context.errors import InvalidOptions
from agent_context.messages import ToolCall
from agent_context.tools import ApprovalPolicy, CallableTool, FunctionTool, Tool, merge, tool
from agent_context.tools.merge import SkippedTool, ToolSource
from tests.support.toolbox import call


def made(name: str, text: str = "", approval: ApprovalPolicy = "never") -> FunctionTool:
    return tool(lambda: text, name=name, description=text, approval=approval)


def test_the_agent_wins_then_the_earlier_provider(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        merged = merge(
            ToolSource("agent", [made("b", "agent"), made("a", "agent")]),
            ToolSource("skills", [made("c", "skills"), made("a", "skills")]),
            ToolSource("files", [made("c", "files"), made("d", "files")]),
        )

    assert [(item.name, item.description) for item in merged.tools] == [
        ("b", "agent"),
        ("a", "agent"),
        ("c", "skills"),
        ("d", "files"),
    ]
    assert merged.skipped == (
        SkippedTool("a", "skills", "agent"),
        SkippedTool("c", "files", "skills"),
    )
    assert [record.getMessage() for record in caplog.records] == [
        "tool 'a' of skills was left out: agent has one of that name",
        "tool 'c' of files was left out: skills has one of that name",
    ]


def test_a_conflict_may_be_an_error() -> None:
    with pytest.raises(InvalidOptions, match="'a' of agent and skills"):
        merge(
            ToolSource("agent", [made("a")]),
            ToolSource("skills", [made("a", "other")]),
            conflict="error",
        )


def test_the_same_tool_from_two_sources_is_no_conflict() -> None:
    one = made("a")

    merged = merge(ToolSource("agent", [one]), ToolSource("skills", [one]), conflict="error")

    assert merged.tools == (one,)
    assert merged.skipped == ()


def only_x(asked: ToolCall) -> bool:
    return "x" in asked.arguments


@pytest.mark.parametrize(
    ("first", "second", "x", "y"),
    [
        ("never", "never", False, False),
        ("never", "require", True, True),
        ("require", "never", True, True),
        ("never", only_x, True, False),
        (only_x, "require", True, True),
        (only_x, "never", True, False),
    ],
)
def test_the_need_for_approval_stays(
    first: ApprovalPolicy, second: ApprovalPolicy, x: bool, y: bool
) -> None:
    merged = merge(
        ToolSource("agent", [made("a", approval=first)]),
        ToolSource("one", [made("a", "other")]),
        ToolSource("two", [made("a", "third", approval=second)]),
    )

    [kept] = merged.tools
    assert isinstance(kept, CallableTool)
    assert kept.description == ""
    assert kept.needs_approval(call("a", to="x")) is x
    assert kept.needs_approval(call("a", to="y")) is y


def test_a_tool_that_only_the_program_can_run_stays_as_it_is() -> None:
    plain = Tool(name="a")

    merged = merge(ToolSource("agent", [plain]), ToolSource("one", [made("a", approval="require")]))

    assert merged.tools == (plain,)


def test_a_tool_that_says_the_same_but_is_another_is_a_conflict() -> None:
    merged = merge(ToolSource("agent", [made("a")]), ToolSource("one", [made("a")]))

    assert len(merged.skipped) == 1


def test_no_sources_give_no_tools() -> None:
    assert merge().tools == ()
