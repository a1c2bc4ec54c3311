"""How many messages a second conversations take in, one of them and a thousand of them.

Each kind of talk is timed with the same messages against bare `pykka.ThreadingActor`s that append
to a list. `tell` counts until all is handled; pipelined asks are made first and waited for
afterwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import pykka

from agent_context import AgentContext, Append, Message
from agent_context.protocol import Ask, Len
from benchmarks.material import MuteBackend, text
from benchmarks.report import Row, main, rate, seconds

__all__ = ["rows"]

ROUNDS = 3
AT_ONCE = 5_000
"""Messages that wait at most: a mailbox has a bound."""


@dataclass(frozen=True, slots=True)
class Talker:
    """An actor of either kind, as it is spoken to."""

    ask: Callable[[Ask[Any]], object]
    tell: Callable[[Ask[Any]], object]
    post: Callable[[Ask[Any]], pykka.Future[Any]]
    stop: Callable[[], object]


Work = Callable[[Sequence[Talker], Sequence[Message]], object]


class BareActor(pykka.ThreadingActor):
    """A list with a thread."""

    use_daemon_thread = True

    def __init__(self) -> None:
        super().__init__()
        self.said: list[Message] = []

    def on_receive(self, message: Any) -> Any:  # noqa: ANN401 - pykka's signature
        if isinstance(message, Append):
            self.said.append(message.message)
            return message.message.id
        return len(self.said)


def conversation() -> Talker:
    context = AgentContext.start(MuteBackend())
    ref = context.actor_ref
    return Talker(context.ask, context.tell, lambda said: ref.ask(said, block=False), context.stop)


def bare_actor() -> Talker:
    ref = BareActor.start()
    return Talker(ref.ask, ref.tell, lambda said: ref.ask(said, block=False), ref.stop)


def told(talkers: Sequence[Talker], messages: Sequence[Message]) -> None:
    for part in _parts(messages):
        for talker, message in zip(cycle(talkers), part, strict=False):
            talker.tell(Append(message))
        for reply in [talker.post(Len()) for talker in talkers]:
            reply.get(timeout=60)


def asked(talkers: Sequence[Talker], messages: Sequence[Message]) -> None:
    for talker, message in zip(cycle(talkers), messages, strict=False):
        talker.ask(Append(message))


def asked_ahead(talkers: Sequence[Talker], messages: Sequence[Message]) -> None:
    for part in _parts(messages):
        pairs = zip(cycle(talkers), part, strict=False)
        for reply in [talker.post(Append(message)) for talker, message in pairs]:
            reply.get(timeout=60)


def read(talkers: Sequence[Talker], messages: Sequence[Message]) -> None:
    for talker in islice(cycle(talkers), len(messages)):
        talker.ask(Len())


WORK: tuple[tuple[str, Work, int], ...] = (
    ("`tell(Append)`", told, 20_000),
    ("`ask(Append)`, one by one", asked, 4_000),
    ("`ask(Append)`, pipelined", asked_ahead, 10_000),
    ("`ask(Len)`, one by one", read, 4_000),
)


def rows(scale: float) -> Iterator[Row]:
    for count, peers in ((1, 1), (1_000, 200)):
        for name, work, messages in WORK:
            ours, floor = _compared(count, peers, work, max(100, round(messages * scale)))
            yield Row(
                what=f"{name}, {count:,} conversation{'s' if count > 1 else ''}",
                figure=rate(ours),
                floor=f"{peers} bare `ThreadingActor`{'s' if peers > 1 else ''}: {rate(floor)}",
                ratio=f"{ours / floor:.1f}",
            )


def _compared(count: int, peers: int, work: Work, messages: int) -> tuple[float, float]:
    """Messages a second of conversations and of bare actors, in alternating rounds."""
    ours: list[float] = []
    floor: list[float] = []
    for _ in range(ROUNDS):
        said = [Message.user(text()) for _ in range(messages)]
        ours.append(messages / _timed(conversation, count, work, said))
        floor.append(messages / _timed(bare_actor, peers, work, said))
    return statistics.median(ours), statistics.median(floor)


def _timed(
    start: Callable[[], Talker], count: int, work: Work, messages: Sequence[Message]
) -> float:
    talkers = [start() for _ in range(count)]
    work(talkers, messages[: count // 10 + 1])
    try:
        return seconds(lambda: work(talkers, messages))
    finally:
        for talker in talkers:
            talker.stop()


def _parts(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    for start in range(0, len(messages), AT_ONCE):
        yield messages[start : start + AT_ONCE]


if __name__ == "__main__":
    main(__doc__, rows)
