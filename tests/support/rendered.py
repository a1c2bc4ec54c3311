"""What goes over the wire of a conversation."""

import json
from collections.abc import Sequence
from typing import Any

from agent_context._context.stored_message import from_message
from agent_context.messages import Message
from agent_context.wire.dialect import Dialect
from agent_context.wire.rendering import RequestRenderer
from tests.histories import zones_of


def rendered(messages: Sequence[Message], dialect: Dialect) -> list[dict[str, Any]]:
    """The messages, or items, of the request's body."""
    body = RequestRenderer().body({}, zones_of(list(map(from_message, messages))), (), dialect)
    sent: list[dict[str, Any]] = json.loads(body)[dialect.list_name]
    return sent
