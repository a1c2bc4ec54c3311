"""Tools are counted as the templates write them; OpenAI's figures are those of its own cookbook."""

from __future__ import annotations

from typing import Any

from agent_context import Message
from agent_context._context.tokens import count_message, count_overhead, counter
from agent_context._context.tool_tokens import count_tools
from agent_context.models import ModelFacts, TemplateOverhead
from agent_context.options import SendOptions
from agent_context.tools import Tool
from agent_context_backends.openai import OpenAIBackend

FACTS = ModelFacts(
    context_window=8_000, max_output=100, overhead=TemplateOverhead(tool_syntax="outline")
)
count = counter("o200k_base").count


def tool(**properties: Any) -> Tool:
    return Tool(name="f", parameters={"type": "object", "properties": properties})


def test_a_request_with_a_tool_counts_as_the_api_reported_it() -> None:
    """OpenAI's cookbook, "How to count tokens with tiktoken" (2024-10): 101 tokens, by the API."""
    facts = OpenAIBackend(api_key="none").model_facts("gpt-4o")
    weather = Tool(
        name="get_current_weather",
        description="Get the current weather in a given location",
        parameters={
            "type": "object",
            "properties": {
                "location": {
                    "type": "string",
                    "description": "The city and state, e.g. San Francisco, CA",
                },
                "unit": {
                    "type": "string",
                    "description": "The unit of temperature to return",
                    "enum": ["celsius", "fahrenheit"],
                },
            },
            "required": ["location"],
        },
    )
    messages = [
        Message.system(
            "You are a helpful assistant that can answer to questions about the weather."
        ),
        Message.user("What's the weather like in San Francisco?"),
    ]

    tokens = sum(count_message(message, facts) for message in messages)

    assert count_overhead(facts, SendOptions()) + tokens + count_tools([weather], facts) == 101


def test_what_is_within_a_property_counts_like_a_property() -> None:
    inner = {"type": "object", "properties": {"city": {"type": "string"}}}
    plain = count_tools([tool(place={"type": "object"})], FACTS)

    nested = count_tools([tool(place=inner)], FACTS)
    listed = count_tools([tool(places={"type": "array", "items": inner})], FACTS)

    assert nested == plain + 3 + 3 + count("city:string:")
    assert abs(listed - nested) <= 2


def test_a_property_of_no_single_type_counts_by_its_schema() -> None:
    choice = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "A name, or none."}

    assert count_tools([tool(name=choice)], FACTS) > count_tools([tool()], FACTS) + 20


def test_a_tool_without_parameters_costs_its_name() -> None:
    assert count_tools([tool()], FACTS) == 12 + 7 + count("f:")
