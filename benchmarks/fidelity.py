"""How much of what is asked the model still sees, in a window that is smaller than the talk.

    python -m benchmarks.fidelity                      # on talks that are made up, always the same
    python -m benchmarks.fidelity --talks talks.jsonl  # on others; `long_talks` says in which form

A talk is said turn by turn; then each question is asked of it by itself. It counts as answerable
when every message that holds its answer is in the request, word for word. What is sent costs: one
tenth where the request before began with the same bytes, all of it elsewhere. Windows are 5, 10 and
25 % of the talk's own tokens. Ways: what peers do (the newest messages that fit; the last 24;
a summary of the rest), and this library's default without recall, and with little and much of it.
The model is scripted: its summaries keep nothing word for word.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean, median

import orjson
from msgspec import Struct

from agent_context import AgentContext, Compress, Extend, Message, Send, SendOptions
from agent_context.backend import Request
from agent_context.compression import (
    Pipeline,
    Recall,
    SlidingWindow,
    Strategy,
    Summarize,
    TokenBudget,
    default_strategy,
)
from agent_context.messages import Completion, FinishReason
from agent_context.models import ModelFacts
from agent_context_backends.scripted import ScriptedBackend
from benchmarks.long_talks import LongTalk, make_talks, read_talks
from benchmarks.report import Row, print_rows

__all__ = ["measure", "rows"]

WINDOWS = (0.05, 0.10, 0.25)
GOALS = {0.05: 0.70, 0.10: 0.78, 0.25: 0.88}
WAYS: Mapping[str, Strategy] = {
    "newest that fits (a sliding window)": TokenBudget(),
    "last 24 messages": Pipeline((SlidingWindow(12), TokenBudget())),
    "summary, 6 kept": Pipeline((Summarize(keep=6), TokenBudget())),
    "default, no recall": default_strategy(recall=None),
    "default, little recall (share 0.25, floor 0.3)": default_strategy(
        recall=Recall(share=0.25, floor=0.3)
    ),
    "default": default_strategy(),
    "default, much recall (share 0.75, floor 0)": default_strategy(
        recall=Recall(share=0.75, floor=0, most=100_000)
    ),
}
_AT_ONCE = 20
_RESERVE = 16
_CACHED = 0.1
"""What a token costs that the vendor has read before, beside one that it hasn't."""


class Figures(Struct, frozen=True):
    """What one way keeps within reach of a question, on average, and what that costs."""

    reached: float
    """Share of the questions whose whole evidence is in the request."""
    tokens: float
    """Of a request, in tokens."""
    cost: float
    """Of a request, in tokens at full price."""


_FACTS = ModelFacts(context_window=1 << 20, max_output=1 << 10, vocabulary="o200k_base")


class _Model(ScriptedBackend):
    """Answers anything, and keeps the last request."""

    def __init__(self) -> None:
        super().__init__((), facts=_FACTS)
        self.last: Sequence[bytes] = ()

    async def send(self, request: Request) -> Completion:
        self.last = [record.body for record in request.records]
        text = "They told each other about their days."
        return Completion(message=Message.assistant(text), finish_reason=FinishReason.STOP)


def measure(talks: Iterable[LongTalk], window: float, strategy: Strategy) -> Figures:
    """What a strategy does in a window of that share of each talk."""
    asked = [each for talk in talks for each in _ask_all(talk, window, strategy)]
    return Figures(*(fmean(column) for column in zip(*asked, strict=True)))


def _ask_all(
    talk: LongTalk, window: float, strategy: Strategy
) -> Iterator[tuple[float, float, float]]:
    """For each question whether its evidence is in the request, its tokens, and their price."""
    model = _Model()
    said = [_as_message(n, text) for n, text in enumerate(talk.texts)]
    size = sum(model.estimate_tokens(message, _FACTS) for message in said)
    options = SendOptions(
        context_window=int(size * window) + _RESERVE, max_tokens=_RESERVE, commit="manual"
    )
    with AgentContext.start(model, options=options, compression=strategy) as conversation:
        for start in range(0, len(said), _AT_ONCE):
            conversation.ask(Extend(said[start : start + _AT_ONCE]))
            conversation.ask(Send("And then?"))
        for question in talk.questions:
            before = model.last
            conversation.ask(Send(question.text))
            sent = b"\n".join(model.last)
            found = all(_encode(talk.texts[number]) in sent for number in question.evidence)
            tokens, cost = _price(before, model.last)
            yield float(found), tokens, cost


def _as_message(number: int, text: str) -> Message:
    return Message.assistant(text) if number % 2 else Message.user(text)


def _encode(text: str) -> bytes:
    """How a text stands in a body."""
    return orjson.dumps(text)[1:-1]


def _price(before: Sequence[bytes], sent: Sequence[bytes]) -> tuple[float, float]:
    """Tokens of a request, and the same at full price; about four bytes each."""
    pairs = zip(before, sent, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    cached = sum(map(len, sent[:shared])) / 4
    total = sum(map(len, sent)) / 4
    return total, total - cached + _CACHED * cached


def _time_rows(scale: float) -> Iterator[Row]:
    """What a turn pays for being recalled to, among many messages that are out of sight."""
    talks = list(make_talks(10, max(100, round(1_000 * scale))))
    said = [Message.user(text) for talk in talks for text in talk.texts]
    asked = [question.text for talk in talks for question in talk.questions][:200]
    without, with_recall = (
        _median_cpu(said, asked, strategy)
        for strategy in (WAYS["default, no recall"], WAYS["default"])
    )
    added = (with_recall - without) * 1e3
    yield Row(
        what=f"CPU that recall adds to a turn, {len(said):,} messages: p50",
        figure=f"{added:.1f} ms",
        floor=f"the turn without: {without * 1e3:.1f} ms",
        goal="≤ 5 ms",
        met=added <= 5,
    )


def _median_cpu(said: Sequence[Message], asked: Sequence[str], strategy: Strategy) -> float:
    options = SendOptions(context_window=16_000, max_tokens=500, commit="manual")
    with AgentContext.start(_Model(), options=options, compression=strategy) as conversation:
        conversation.ask(Extend(said), timeout=60)
        conversation.ask(Compress(SlidingWindow(turns=200)), timeout=60)
        conversation.ask(Send(asked[0]))  # makes the index
        times: list[float] = []
        for question in asked:
            start = time.process_time()
            conversation.ask(Send(question))
            times.append(time.process_time() - start)
    return median(times)


def rows(scale: float, path: Path | None = None) -> Iterator[Row]:
    talks = list(read_talks(path) if path else make_talks(max(1, round(5 * scale)), 600))
    for window in WINDOWS:
        for name, strategy in WAYS.items():
            figures = measure(talks, window, strategy)
            goal = GOALS[window] if name == "default" else None
            yield Row(
                what=f"{window:.0%} of the talk: {name}",
                figure=f"{figures.reached:.1%} of the questions; {figures.tokens:,.0f} tokens sent "
                f"cost as {figures.cost:,.0f}",
                goal=f"≥ {goal:.0%}" if goal else "",
                met=figures.reached >= goal if goal else None,
            )
    yield from _time_rows(scale)


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="rows as lines of JSON")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    parser.add_argument("--talks", type=Path, help="a file of talks, instead of those made up")
    chosen = parser.parse_args()
    print_rows(rows(chosen.scale, chosen.talks), as_json=chosen.json)


if __name__ == "__main__":
    run()
