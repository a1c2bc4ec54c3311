"""What a turn costs, by the length of the history: CPU time of `ask(Send)` and `ask(SendStream)`.

Everything is as in a program, but that the vendor is an `httpx.MockTransport`: the request is
rendered, counted, compared, sent, and its answer read and stored. CPU time of the whole process, of
which the median over turns is shown, after the first turns of a conversation (which count and
render its history once). The fit is the exponent of cost by length: 0 is flat, 1 is linear.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import orjson

from agent_context import AgentContext, ContextRef, Extend, Message, Send, SendOptions, SendStream
from agent_context.protocol import Append, CacheReport, EstimateTokens, Update
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.tools import tool
from agent_context_backends.chat_completions import ChatCompletionsBackend
from agent_context_backends.deepseek import DeepSeekBackend
from agent_context_backends.openai import OpenAIBackend
from agent_context_backends.zhipu import ZhipuBackend
from benchmarks.material import talk
from benchmarks.report import Row, main

__all__ = ["rows"]

LENGTHS = (100, 1_000, 10_000, 100_000)
GOAL = 1.5
"""Cost at 10,000 messages over that at 100."""
TURNS = 30
WARM = 3

Ask = Callable[[ContextRef], object]


def answer(request: httpx.Request) -> httpx.Response:
    """What any of the vendors would say, in the form that was asked for."""
    # The request isn't parsed: that would cost more than all else, and grow with the history.
    streamed = b'"stream":true' in request.content[-400:]
    reply = RESPONSES if request.url.path.endswith("/responses") else CHAT
    if not streamed:
        return httpx.Response(200, content=reply[0])
    return httpx.Response(200, content=reply[1], headers={"content-type": "text/event-stream"})


def _events(*events: dict[str, Any]) -> bytes:
    lines = (b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    return b"".join((*lines, b"data: [DONE]\n\n"))


_TEXT: dict[str, Any] = {"type": "output_text", "text": "It rains."}
_ITEM: dict[str, Any] = {
    "type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [_TEXT],
}  # fmt: skip
_RESPONSE: dict[str, Any] = {
    "id": "r", "status": "completed", "model": "m", "output": [_ITEM],
    "usage": {"input_tokens": 10, "output_tokens": 2},
}  # fmt: skip
_DELTA: dict[str, Any] = {"type": "response.output_text.delta", "output_index": 0, "item_id": "m"}
RESPONSES: tuple[bytes, bytes] = (
    orjson.dumps(_RESPONSE),
    _events(
        {"type": "response.output_item.added", "output_index": 0, "item": _ITEM | {"content": []}},
        _DELTA | {"delta": "It rains."},
        {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
        {"type": "response.completed", "response": _RESPONSE},
    ),
)
_SAID: dict[str, Any] = {"role": "assistant", "content": "It rains."}
_USAGE: dict[str, Any] = {"prompt_tokens": 10, "completion_tokens": 2}
CHAT: tuple[bytes, bytes] = (
    orjson.dumps(
        {
            "id": "c",
            "choices": [{"index": 0, "finish_reason": "stop", "message": _SAID}],
            "usage": _USAGE,
        }
    ),
    _events(
        {"choices": [{"index": 0, "delta": _SAID}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": _USAGE},
    ),
)


def send(ref: ContextRef) -> object:
    return ref.ask(Send(messages=[Message.user("And now?")]))


def stream(ref: ContextRef) -> object:
    with ref.ask(SendStream(messages=[Message.user("And now?")])) as events:
        return list(events)


@tool
def weather(city: str) -> str:
    """What the weather is like."""
    return f"It rains in {city}."


TOOLS = SendOptions(tools=[weather.spec], scratch="It is noon.")


def with_tools(ref: ContextRef) -> object:
    return ref.ask(Send(TOOLS, messages=[Message.user("And now?")]))


def report(ref: ContextRef) -> object:
    return ref.ask(CacheReport())


def estimate(ref: ContextRef) -> object:
    return ref.ask(EstimateTokens())


def backends() -> Iterator[tuple[str, ChatCompletionsBackend]]:
    given: Any = {"api_key": "none", "transport": httpx.MockTransport(answer)}
    yield "DeepSeek", DeepSeekBackend(**given)
    yield "OpenAI, chat", OpenAIBackend(**given, api="chat")
    yield "OpenAI, Responses", OpenAIBackend(**given, api="responses")
    yield "Zhipu", ZhipuBackend(**given)


def conversation(
    backend: ChatCompletionsBackend, length: int, store: Store | None = None
) -> ContextRef:
    options = SendOptions(context_window=1_000_000_000, max_tokens=100)
    name = None if store is None else f"c{length}"
    ref = AgentContext.start(backend, options=options, store=store, id=name)
    ref.ask(Extend(tuple(talk(length))), timeout=600)
    return ref


def cost(ref: ContextRef, ask: Ask) -> float:
    """Seconds of CPU for one ask."""
    for _ in range(WARM):
        ask(ref)
    spent = list[float]()
    for _ in range(TURNS):
        start = time.process_time()
        ask(ref)
        spent.append(time.process_time() - start)
    return statistics.median(spent)


def fitted(costs: dict[int, float]) -> float:
    """The exponent of cost by length, by least squares on logarithms."""
    xs, ys = [math.log(n) for n in costs], [math.log(c) for c in costs.values()]
    x, y = statistics.mean(xs), statistics.mean(ys)
    spread = sum((a - x) ** 2 for a in xs)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread


def row(what: str, costs: dict[int, float]) -> Row:
    figure = ", ".join(f"{cost * 1e3:.2f}" for cost in costs.values())
    lengths = ", ".join(f"{n:,}" for n in costs)
    ratio = costs[10_000] / costs[100]
    return Row(
        what=f"{what}: ms of CPU at {lengths} messages",
        figure=f"{figure} (fit {fitted(costs):.2f})",
        floor="at 100 messages",
        ratio=f"{ratio:.2f}",
        goal=f"<= {GOAL}",
        met=ratio <= GOAL,
    )


def over_lengths(
    lengths: tuple[int, ...], start: Callable[[int], ContextRef], ask: Ask
) -> dict[int, float]:
    costs = dict[int, float]()
    for length in lengths:
        ref = start(length)
        costs[length] = cost(ref, ask)
        ref.stop()
    return costs


def edited(ref: ContextRef) -> ContextRef:
    ref.ask(Update(5, Message.user("It was another day.")))
    return ref


def rows(scale: float) -> Iterator[Row]:
    lengths = tuple(n for n in LENGTHS if n <= max(10_000, 100_000 * scale))
    for name, backend in backends():
        start = partial(conversation, backend)
        yield row(f"{name}, Send", over_lengths(lengths, start, send))
        yield row(f"{name}, SendStream", over_lengths(lengths, start, stream))
    backend = DeepSeekBackend(api_key="none", transport=httpx.MockTransport(answer))
    start = partial(conversation, backend)
    yield row("with tools and scratch", over_lengths(lengths, start, with_tools))
    yield row("after an edit", over_lengths(lengths, lambda n: edited(start(n)), send))
    yield row("EstimateTokens", over_lengths(lengths, start, estimate))
    yield row("CacheReport", over_lengths(lengths, start, report))
    with TemporaryDirectory() as directory, closing(SqliteStore(f"{directory}/talks.db")) as store:
        kept = partial(conversation, backend, store=store)
        yield row("with SQLite", over_lengths(lengths, kept, send))
        start = partial(reopened, backend, store)
        yield row("after a restart", over_lengths(lengths, start, send))
        woken = {length: waking(partial(start, length)) for length in lengths}
        yield row("to wake from a store with a snapshot, and one Append", woken)


def reopened(backend: ChatCompletionsBackend, store: Store, length: int) -> ContextRef:
    options = SendOptions(context_window=1_000_000_000, max_tokens=100)
    return AgentContext.start(backend, options=options, store=store, id=f"c{length}")


def waking(start: Callable[[], ContextRef]) -> float:
    """Seconds of CPU to start a stored conversation and append to it."""
    spent = list[float]()
    for _ in range(TURNS):
        begun = time.process_time()
        ref = start()
        ref.ask(Append(Message.user("And now?")))
        spent.append(time.process_time() - begun)
        ref.stop()
    return statistics.median(spent)


if __name__ == "__main__":
    main(__doc__, rows)
