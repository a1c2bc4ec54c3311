"""Runs whose answer is a value of a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from agent_context.agent.turn import Request
from agent_context.backend import ContextBackend
from agent_context.errors import InvalidOutput
from agent_context.messages import Message
from agent_context.options import release_tool_choice
from agent_context.providers.context import SessionContext
from agent_context.structured_output import output_instructions, response_format_for

__all__ = ["request_structured_output", "retry_request"]


def request_structured_output(
    kind: type[Any], context: SessionContext, client: ContextBackend
) -> None:
    """Have the model asked for a value of `kind`, by its vendor's best means.

    A `response_format` that the caller chose stays.
    """
    options = context.options
    formats = client.response_formats(options)
    context.extend_instructions("output_type", output_instructions(formats, kind) or "")
    wanted = options.response_format or response_format_for(formats, kind)
    context.options = options.model_copy(update={"response_format": wanted})


def retry_request(request: Request, said: Sequence[Message], complaint: InvalidOutput) -> Request:
    """The request that has the model mend an answer that is not of the type."""
    choice = release_tool_choice(request.options.tool_choice)
    options = request.options.model_copy(update={"tool_choice": choice})
    history = request.history
    if history is not None:
        history = [*history, *request.messages, *said]
    messages = [Message.user(str(complaint))]
    return replace(request, options=options, messages=messages, history=history)
