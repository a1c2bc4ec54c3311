"""How fast conversations are read from lines of JSON, beside `json.loads` of the same lines.

Messages for each second of processor time, all threads together, asked through the front door; the
rounds alternate with the floor, and the median counts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator

from agent_context import AgentContext, Extend, FromJsonl, Message
from agent_context.protocol import ToJsonl
from benchmarks.material import MuteBackend, talk, tool_turns
from benchmarks.report import Row, main, rate

__all__ = ["rows"]

ROUNDS = 7
GOAL = 150_000


def rows(scale: float) -> Iterator[Row]:
    count = max(1_000, round(20_000 * scale))
    yield _row("its own lines", _own_lines(talk(count)), count)
    tools = list(tool_turns(count))
    yield _row("its own lines, with tool calls", _own_lines(tools), len(tools))
    chat = "".join(f"{json.dumps(_chat_form(message))}\n" for message in talk(count))
    yield _row("lines in chat-completions form", chat, count)


def _row(what: str, text: str, count: int) -> Row:
    ours, floor = zip(*(_round(text) for _ in range(ROUNDS)), strict=True)
    reached = count / statistics.median(ours)
    bare = count / statistics.median(floor)
    return Row(
        what=f"`ask(FromJsonl)`: {what}",
        figure=f"{rate(reached)} of CPU",
        floor=f"`json.loads` of each line: {rate(bare)}",
        ratio=f"{reached / bare:.1f} of its rate",
        goal="≥ 150 k/s",
        met=reached >= GOAL,
    )


def _round(text: str) -> tuple[float, float]:
    conversation = AgentContext.start(MuteBackend())
    try:
        ours = _cpu_seconds(lambda: conversation.ask(FromJsonl(text)))
    finally:
        conversation.stop()
    return ours, _cpu_seconds(lambda: [json.loads(line) for line in text.splitlines()])


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _own_lines(messages: Iterable[Message]) -> str:
    conversation = AgentContext.start(MuteBackend())
    try:
        conversation.ask(Extend(list(messages)))
        return conversation.ask(ToJsonl())
    finally:
        conversation.stop()


def _chat_form(message: Message) -> dict[str, str]:
    return {"role": message.role.value, "content": message.text}


if __name__ == "__main__":
    main(__doc__, rows)
