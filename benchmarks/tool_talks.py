"""Talks with tools, made from a fixed seed: what a model answered, what its tools gave back.

An agent of a shop with long rules: its customers ask for several things, one after the other; for
each it looks up orders and articles, some of them long lists, and changes something. Talks of one's
own are read from lines of JSON with `messages` in chat-completions form.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ToolTalk", "join_tool_talks", "make_tool_talks", "read_tool_talks", "tools_of"]

ToolTalk = Sequence[dict[str, Any]]
"""The messages of a talk, in chat-completions form: the system's first."""

_GOODS = (
    "lamp",
    "chair",
    "kettle",
    "carpet",
    "mirror",
    "shelf",
    "clock",
    "blanket",
    "desk",
    "bowl",
)
_RULES = "\n".join(
    f"{number}. Before you {verb} {thing}, look it up, tell the customer what changes and what it "
    "costs, and wait for a clear yes; if the rules of the warehouse forbid it, say so and offer "
    "what comes closest, but never promise a date that the system doesn't show."
    for number, (verb, thing) in enumerate(
        ((verb, f"the {thing} of an order") for verb in ("change", "cancel", "return", "resend")
         for thing in ("address", "payment", "articles", "delivery", "invoice", "gift wrapping")),
        start=1,
    )
)  # fmt: skip


def make_tool_talks(count: int, questions: int = 24) -> Iterator[ToolTalk]:
    """So many talks of so many questions; always the same ones."""
    for number in range(count):
        yield list(_make_talk(random.Random(number), questions))


def read_tool_talks(path: Path) -> Iterator[ToolTalk]:
    """The talks of a file, one JSON object a line; packed with gzip if it is named `.gz`."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    for line in text.decode().splitlines():
        yield _answered(json.loads(line)["messages"])


def _answered(talk: ToolTalk) -> ToolTalk:
    """As far as everything has its answer."""
    ends = (n for n, m in enumerate(talk) if m["role"] == "assistant" and not m.get("tool_calls"))
    return talk[: max(ends, default=0) + 1]


def join_tool_talks(talks: Sequence[ToolTalk], count: int) -> Iterator[ToolTalk]:
    """Each `count` talks as one long one, under the first one's system message."""
    for start in range(0, len(talks), count):
        first, *others = talks[start : start + count]
        yield [*first, *(message for talk in others for message in talk[1:])]


def tools_of(talk: ToolTalk) -> list[dict[str, Any]]:
    """Definitions of the tools that a talk calls, in chat-completions form."""
    arguments: dict[str, dict[str, Any]] = {}
    for message in talk:
        for call in message.get("tool_calls") or ():
            known = arguments.setdefault(call["function"]["name"], {})
            for argument in json.loads(call["function"]["arguments"]):
                known[argument] = {"type": "string"}
    return [
        {"name": name, "parameters": {"type": "object", "properties": properties}}
        for name, properties in sorted(arguments.items())
    ]


def _make_talk(source: random.Random, questions: int) -> Iterator[dict[str, Any]]:
    yield {"role": "system", "content": f"You serve the customers of a shop.\n\n{_RULES}"}
    for question in range(questions):
        good, order = source.choice(_GOODS), f"#W{source.randrange(10**6, 10**7)}"
        yield {"role": "user", "content": f"I'd like to exchange the {good} of my order {order}."}
        for step in range(source.randrange(1, 4)):
            name = ("get_order", "list_articles", "get_article")[step]
            call = f"call_{question}_{step}"
            function = {"name": name, "arguments": json.dumps({"id": order, "kind": good})}
            calls = [{"id": call, "type": "function", "function": function}]
            yield {"role": "assistant", "content": "", "tool_calls": calls}
            articles = [_article(source, good) for _ in range(source.randrange(2, 14))]
            yield {"role": "tool", "tool_call_id": call, "content": json.dumps(articles)}
        told = f"Your order {order}: the {good} can be exchanged for one in {_colour(source)}."
        yield {"role": "assistant", "content": f"{told} It costs nothing. Shall I do it (yes/no)?"}
        yield {"role": "user", "content": "Yes, please go ahead."}
        yield {"role": "assistant", "content": f"Done: the new {good} leaves the warehouse today."}


def _article(source: random.Random, good: str) -> dict[str, Any]:
    return {
        "article": source.randrange(10**9, 10**10),
        "name": f"{_colour(source)} {good}",
        "price": source.randrange(500, 50_000) / 100,
        "in_stock": source.random() < 0.7,
        "warehouse": source.choice(("north", "south", "harbour")),
    }


def _colour(source: random.Random) -> str:
    return source.choice(("red", "blue", "green", "white", "black", "oak", "grey"))
