"""What is legal in a request, as a small model; and DeepSeek's own validator, where it is there."""

import importlib
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from agent_context.messages import Role
from agent_context.records import Record
from agent_context.wire.dialect import Dialect

Wire = list[dict[str, Any]]


def says_nothing(message: dict[str, Any]) -> bool:
    content = message["content"]
    if isinstance(content, str):
        return not content.strip()
    return all(part["type"] == "text" and not part["text"].strip() for part in content)


def faults(messages: Wire, rules: Dialect) -> list[str]:
    """Every rule that these messages break."""
    found = ["no message"] if not messages else []
    expected: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not expected or message["tool_call_id"] != expected.pop(0):
                found.append(f"not the result that is due: {message}")
            continue
        found += [f"unanswered: {call}" for call in expected]
        expected = [call["id"] for call in message.get("tool_calls", [])]
        found += _message_faults(message, expected, rules)
    found += [f"unanswered at the end: {call}" for call in expected]
    return found + _sequence_faults([message["role"] for message in messages], rules)


def _message_faults(message: dict[str, Any], calls: list[str], rules: Dialect) -> list[str]:
    found = []
    if message["role"] in {"user", "assistant"} and not calls and says_nothing(message):
        found.append(f"says nothing: {message}")
    if "tool_calls" in message and not calls:
        found.append("an empty list of calls")
    if len(set(calls)) < len(calls) or not all(calls):
        found.append(f"ids are empty or not unique: {calls}")
    if rules.max_call_id and any(len(call) > rules.max_call_id for call in calls):
        found.append(f"an id is too long: {calls}")
    return found


def _sequence_faults(roles: list[str], rules: Dialect) -> list[str]:
    found = ["no user"] if rules.needs_user and "user" not in roles else []
    if rules.merge_same_role:
        pairs = pairwise(roles)
        found += [f"twice in a row: {one}" for one, two in pairs if one == two != "tool"]
    return found


def record_faults(records: Sequence[Record], rules: Dialect) -> list[str]:
    """The same of records; what they say of their calls must be true as well."""
    messages = [record.fields() for record in records]
    named = [
        (message["tool_call_id"],)
        if record.role is Role.TOOL
        else tuple(call["id"] for call in message.get("tool_calls", ()))
        for record, message in zip(records, messages, strict=True)
    ]
    stale = [record.id for record, ids in zip(records, named, strict=True) if record.calls != ids]
    return faults(messages, rules) + [f"calls are not those of the body: {name}" for name in stale]


def deepseek_refuses(messages: Wire) -> str | None:
    """What the validator that DeepSeek publishes has against these messages, thinking on."""
    recipe = importlib.import_module("deepseek_recipe")
    options = recipe.ConversionOptions(
        reasoning_content_behavior=recipe.ReasoningContentBehavior.Reject
    ).with_model_alias("deepseek-flash", recipe.ModelVersion.DeepseekV41Flash)
    body = json.loads(json.dumps({"model": "deepseek-flash", "messages": messages}))
    try:
        recipe.ChatCompletionRequest(body).convert(options)
    except (recipe.ConversionError, ValueError) as error:
        return str(error)
    return None
