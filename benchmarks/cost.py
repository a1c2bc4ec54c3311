"""What a conversation with tools costs: how much of its input a vendor has read before.

    python -m benchmarks.cost                        # on talks that are made up, always the same
    python -m benchmarks.cost --traces traces.jsonl  # on others, see `tool_talks`

Recorded talks are held again through the real backends, whose server gives the recorded answers and
keeps the bytes of each request. Two rules of caches are applied to those bytes: *blocks*, where
only whole earlier requests are found, or what two of them have in common, in steps of 64 tokens;
and *beginning*, where any beginning of 1,024 tokens or more is found, in steps of 128. A token is
four bytes. What was read before costs a tenth. Beside it, on the same talks and under the same
rules, what is done by hand: the newest messages that fit, the last 24, a note in the system prompt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import Any, Literal

import httpx
from msgspec import Struct

from agent_context import (
    AgentContext,
    Append,
    ChangeEvent,
    Completion,
    Message,
    Send,
    SendOptions,
    events,
)
from agent_context.backend import ContextBackend
from agent_context.compression import Strategy, default_strategy
from agent_context.compression.summarize import PROMPT
from agent_context.tools import Tool
from agent_context.tools.loop import ToolRound
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from benchmarks.report import Row, print_rows
from benchmarks.tool_talks import (
    ToolTalk,
    join_tool_talks,
    make_tool_talks,
    read_tool_talks,
    tools_of,
)

__all__ = ["measure", "rows"]

CacheRule = Literal["blocks", "beginning"]
Parts = Sequence[bytes]
"""A request as the vendor reads it: its tools, then each message."""

WINDOW = 12_000
RESERVE = 1_000
_CACHED = 0.1
_GOALS = {"blocks": 0.94, "beginning": 0.96}


class Costs(Struct):
    """Sums over talks; tokens."""

    answers: int = 0
    input: int = 0
    cached: int = 0
    compressions: int = 0
    summaries: int = 0
    breaks: int = 0
    recalls: int = 0

    @property
    def share(self) -> float:
        """Of the input that had been read before."""
        return self.cached / max(self.input, 1)

    @property
    def an_answer(self) -> float:
        """Tokens at full price."""
        return (self.input - (1 - _CACHED) * self.cached) / max(self.answers, 1)


class Cache:
    """What a vendor remembers of one talk's requests."""

    def __init__(self, rule: CacheRule) -> None:
        self._rule = rule
        self._requests: list[Parts] = []
        self._entries: list[Parts] = []

    def read(self, request: Parts) -> int:
        """Tokens of this request that are found; remembers it."""
        common = [_common(request, earlier) for earlier in self._requests]
        if self._rule == "beginning":
            found = max(map(_size, common), default=0)
            found = found - found % 128 if found >= 1_024 else 0
        else:
            entries = (e for e in self._entries if request[: len(e)] == e)
            found = max(map(_size, entries), default=0) // 64 * 64
            self._entries += [*filter(None, common), request]
        self._requests.append(request)
        return found


def _common(one: Parts, other: Parts) -> Parts:
    pairs = zip(one, other, strict=False)
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]


def _size(parts: Parts) -> int:
    return sum(map(len, parts)) // 4


class Replay:
    """A server that answers as was recorded, and the tools that give back what was recorded."""

    def __init__(self, talk: ToolTalk, rule: CacheRule, costs: Costs) -> None:
        self._answers = iter([m for m in talk if m["role"] == "assistant"])
        self._results = {m["tool_call_id"]: m for m in talk if m["role"] == "tool"}
        self._cache, self._costs = Cache(rule), costs

    def serve(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        parts = [json.dumps(part).encode() for part in (body.get("tools"), *body["messages"])]
        asks = body["messages"][-1]["content"] or ""
        size, cached = _size(parts), self._cache.read(parts)
        self._costs.input += size
        self._costs.cached += cached
        if PROMPT[:40] in str(asks):
            self._costs.summaries += 1
            message = {"role": "assistant", "content": "The customer asked; it was done. " * 10}
        else:
            self._costs.answers += 1
            message = next(self._answers, {"role": "assistant", "content": "Goodbye."})
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {
            "prompt_tokens": size, "completion_tokens": 20, "total_tokens": size + 20,
            "prompt_tokens_details": {"cached_tokens": cached},
            "prompt_cache_hit_tokens": cached, "prompt_cache_miss_tokens": size - cached,
        }  # fmt: skip
        told = {"id": "r", "object": "chat.completion", "created": 0, "model": body["model"]}
        return httpx.Response(200, json={**told, "choices": [choice], "usage": usage})

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> ToolRound | None:
        del done
        calls = completion.message.tool_calls
        found = [self._results.get(call.id) for call in calls]
        return ToolRound(
            tuple(
                Message.tool(call.id, result["content"] if result else "no result")
                for call, result in zip(calls, found, strict=True)
            )
        )

    def count(self, event: ChangeEvent) -> None:
        self._costs.compressions += isinstance(event, events.Compressed)
        self._costs.breaks += isinstance(event, events.PromptPrefixChanged)
        self._costs.recalls += isinstance(event, events.Recalled)


def measure(
    talks: Sequence[ToolTalk], rule: CacheRule, window: int, strategy: Strategy | None = None
) -> Costs:
    """What this library's requests cost, in a window of so many tokens."""
    costs = Costs()
    for talk in talks:
        replay = Replay(talk, rule, costs)
        options = SendOptions(
            context_window=window,
            max_tokens=RESERVE,
            tools=[Tool.model_validate(tool) for tool in tools_of(talk)],
        )
        started = AgentContext.start(
            _backend(rule, replay),
            immutable=[Message.system(talk[0]["content"])],
            options=options,
            compression=strategy,
            on_change=replay.count,
        )
        with started:
            for message, following in zip_longest(talk, talk[1:]):
                if message["role"] != "user":
                    continue
                if following is not None and following["role"] == "assistant":
                    started.ask(Send(message["content"], loop=replay))
                else:  # nobody answered
                    started.ask(Append(Message.user(message["content"])))
    return costs


def _backend(rule: CacheRule, replay: Replay) -> ContextBackend:
    transport = httpx.MockTransport(replay.serve)
    if rule == "blocks":
        return DeepSeekBackend(api_key="none", transport=transport)
    return OpenAIBackend(api_key="none", transport=transport, api="chat")


Way = Callable[[ToolTalk, int], Sequence[dict[str, Any]]]
"""What somebody sends of the messages so far; the number counts the requests."""


def measure_way(talks: Sequence[ToolTalk], rule: CacheRule, way: Way) -> Costs:
    """What requests cost that are made by hand."""
    costs = Costs()
    for talk in talks:
        cache, tools = Cache(rule), json.dumps(tools_of(talk)).encode()
        for number, message in enumerate(talk):
            if message["role"] == "assistant":
                parts = [tools, *(json.dumps(m).encode() for m in way(talk[:number], number))]
                costs.answers += 1
                costs.input += _size(parts)
                costs.cached += cache.read(parts)
    return costs


def _slide(talk: ToolTalk, number: int) -> Sequence[dict[str, Any]]:
    del number
    kept: list[dict[str, Any]] = []
    room = (WINDOW - RESERVE) * 4 - len(json.dumps(talk[0]))
    for message in reversed(talk[1:]):
        room -= len(json.dumps(message))
        if room < 0:
            break
        kept.insert(0, message)
    return [talk[0], *kept]


def _last_24(talk: ToolTalk, number: int) -> Sequence[dict[str, Any]]:
    del number
    return [talk[0], *talk[1:][-24:]]


def _noted(talk: ToolTalk, number: int) -> Sequence[dict[str, Any]]:
    return [{**talk[0], "content": f"It is 12:{number}.\n{talk[0]['content']}"}, *talk[1:]]


WAYS = {
    "all of it, the time in the system prompt": _noted,
    "the newest that fits, slides with each request": _slide,
    "the last 24 messages": _last_24,
}


def rows(scale: float, path: Path | None = None, join: int = 1) -> Iterator[Row]:
    talks = list(read_tool_talks(path) if path else make_tool_talks(20))
    talks = list(join_tool_talks(talks, join))
    talks = talks[: max(1, round(len(talks) * scale))]
    rules: tuple[CacheRule, ...] = ("blocks", "beginning")
    for rule in rules:
        for name, way in WAYS.items():
            yield _row(f"{rule}, by hand: {name}", measure_way(talks, rule, way))
        yield _row(f"{rule}, never fills", measure(talks, rule, 1_000_000))
        quiet = measure(talks, rule, WINDOW, default_strategy(recall=None))
        yield _row(f"{rule}, a window of {WINDOW:,}, no recall", quiet, _GOALS[rule])
        yield _row(f"{rule}, a window of {WINDOW:,}, the default", measure(talks, rule, WINDOW))


def _row(what: str, costs: Costs, goal: float | None = None) -> Row:
    told = (
        f"; {costs.compressions} compressions, {costs.summaries} summaries, "
        f"{costs.breaks} breaks, {costs.recalls} recalls"
        if costs.compressions
        else ""
    )
    return Row(
        what=what,
        figure=f"{costs.share:.1%} cached, {costs.an_answer:,.0f} tokens an answer{told}",
        goal=f"≥ {goal:.0%} cached" if goal else "",
        met=costs.share >= goal if goal else None,
    )


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="rows as lines of JSON")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    parser.add_argument("--traces", type=Path, help="a file of talks, instead of those made up")
    parser.add_argument("--join", type=int, default=1, help="so many talks make a long one")
    chosen = parser.parse_args()
    print_rows(rows(chosen.scale, chosen.traces, chosen.join), as_json=chosen.json)


if __name__ == "__main__":
    run()
