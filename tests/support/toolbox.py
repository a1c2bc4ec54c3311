"""Calls as a model makes them."""

import json

from agent_context.messages import ToolCall
from agent_context.tools import ToolContext


def call(name: str, id: str = "c1", /, **arguments: object) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=json.dumps(arguments))


def context(name: str = "f") -> ToolContext:
    return ToolContext(ToolCall(id="c1", name=name))
