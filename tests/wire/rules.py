"""What is legal in a request, as a small model; and DeepSeek's own validator, where it is there."""

import importlib
import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from agent_context._context.stored_message import StoredMessage
from agent_context.messages import Role
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


def record_faults(records: Sequence[StoredMessage], rules: Dialect) -> list[str]:
    """The same of records; what they say of their calls must be true as well."""
    messages = [record.fields() for record in records]
    named = [
        (message["tool_call_id"],)
        if record.role is Role.TOOL
        else tuple(call["id"] for call in message.get("tool_calls", ()))
        for record, message in zip(records, messages, strict=True)
    ]
    stale = [
        record.id for record, ids in zip(records, named, strict=True) if record.call_ids != ids
    ]
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


def item_faults(items: Wire, rules: Dialect) -> list[str]:
    """Every rule of the Responses API that these input items break."""
    found = [] if items else ["no item"]
    found += _pair_faults(items, rules)
    found += [f"nothing follows reasoning: {item}" for item in _dangling(items)]
    for item in items:
        found += _item_faults(item, rules)
    roles = [item.get("role") for item in items]
    found += ["no user"] if rules.needs_user and "user" not in roles else []
    if rules.backfill_reasoning:
        found += _thoughtless(items)
    return found


def _pair_faults(items: Wire, rules: Dialect) -> list[str]:
    found: list[str] = []
    seen: set[str] = set()
    due: list[str] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            found += [f"two calls have one id: {item}"] if item["call_id"] in seen else []
            found += _id_faults(item["call_id"], rules)
            seen.add(item["call_id"])
            due.append(item["call_id"])
        elif kind == "function_call_output":
            found += [] if item["call_id"] in due else [f"it answers no open call: {item}"]
            due = [name for name in due if name != item["call_id"]]
        elif due and (rules.calls_last or item.get("role") in {"user", "system", "developer"}):
            found.append(f"No tool output found for tool call {due[0]}.")
    return found + [f"No tool output found for tool call {name}." for name in due]


def _id_faults(name: str, rules: Dialect) -> list[str]:
    too_long = rules.max_call_id is not None and len(name) > rules.max_call_id
    return [f"no id for a call: {name!r}"] if not name or too_long else []


def _item_faults(item: dict[str, Any], rules: Dialect) -> list[str]:
    kind = item.get("type", "message")
    if kind == "reasoning":
        full = rules.keep_reasoning and any(part["text"] for part in item.get("content", ()))
        readable = full or item.get("encrypted_content")
        return [] if readable else [f"nobody can read this reasoning: {item}"]
    if kind != "message":
        return [] if kind in {"function_call", "function_call_output"} else [f"what is {item}?"]
    content, role = item["content"], item["role"]
    if role in {"user", "assistant"} and not content:
        return [f"says nothing: {item}"]
    if isinstance(content, str):
        return []
    known = {"output_text", "refusal"} if role == "assistant" else {"input_text", "input_image"}
    kinds = {part["type"] for part in content}
    return [] if kinds <= known else [f"parts of the wrong kind: {item}"]


def _dangling(items: Wire) -> list[dict[str, Any]]:
    """Reasoning that led to nothing."""
    found = []
    led_to: dict[str, Any] | None = None
    for item in reversed(items):
        if item.get("type") != "reasoning":
            led_to = item
        elif (
            led_to is None
            or (led_to.get("role", "assistant") != "assistant")
            or led_to.get("type") == "function_call_output"
        ):
            found.append(item)
    return found


def _thoughtless(items: Wire) -> list[str]:
    """Calls in a run of an assistant's items that doesn't begin with reasoning."""
    found, begins = [], True
    thought = False
    for item in items:
        ours = item.get("type") in {"reasoning", "function_call"} or item.get("role") == "assistant"
        if ours and begins:
            thought = item.get("type") == "reasoning"
        if item.get("type") == "function_call" and not thought:
            found.append(f"must be passed back: reasoning before {item}")
        begins = not ours
    return found


def deepseek_refuses_items(items: Wire) -> str | None:
    """What the validator that DeepSeek publishes has against these items, thinking on."""
    recipe = importlib.import_module("deepseek_recipe")
    options = recipe.ConversionOptions(
        reasoning_content_behavior=recipe.ReasoningContentBehavior.Reject
    ).with_model_alias("deepseek-flash", recipe.ModelVersion.DeepseekV41Flash)
    body = json.loads(json.dumps({"model": "deepseek-flash", "input": items}))
    try:
        recipe.ResponsesRequest(body).convert(options)
    except (recipe.ConversionError, ValueError) as error:
        return str(error)
    return None
