"""How long it takes to build the bytes of a request: inner functions alone, without a turn.

What a whole turn costs is measured by `turns`. Steady: one message has been said since the last
build, as in a conversation that goes on. Cold: the first build. The floor is `orjson.dumps` of a
request whose messages are dicts already.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import orjson

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage, from_message
from agent_context._context.zones import Zones
from agent_context.backend import Request
from agent_context.options import SendOptions
from agent_context.wire.rendering import RequestRenderer
from agent_context_backends._endpoints import CHAT
from agent_context_backends.deepseek import DeepSeekBackend
from benchmarks.material import talk
from benchmarks.report import Row, main, median, seconds

__all__ = ["rows"]

GOAL = 0.1e-3
HEAD: dict[str, Any] = {"model": "deepseek-flash", "max_tokens": 500, "stream": True}

Build = Callable[[RequestRenderer, Zones], bytes]


class Bodies(DeepSeekBackend):
    """The backend's own bodies, without sending them."""

    def body(self, request: Request) -> bytes:
        return self._body(request, CHAT, stream=True)


def rows(scale: float) -> Iterator[Row]:
    backend = Bodies(api_key="none")
    options = SendOptions(model="deepseek-flash", max_tokens=500)
    facts = backend.model_facts(options.model)

    def rendered(rendering: RequestRenderer, zones: Zones) -> bytes:
        return rendering.body(HEAD, zones, (), backend.dialect)

    def whole(rendering: RequestRenderer, zones: Zones) -> bytes:
        return backend.body(
            Request(
                conversation_id="", zones=zones, options=options, facts=facts, rendering=rendering
            )
        )

    for count in (1_000, 10_000):
        records = [from_message(message) for message in talk(count)]
        yield from _measured(records, "`RequestRenderer.body`", rendered, scale)
        yield from _measured(records, "DeepSeek's whole body", whole, scale)


def _measured(records: list[StoredMessage], name: str, build: Build, scale: float) -> Iterator[Row]:
    count = len(records)
    zones = Zones(incremental=PersistentVector.of(records))
    floor = _floor(records, scale)
    cold = median(lambda: build(RequestRenderer(), zones), times=max(3, round(15 * scale)))
    steady = _steady(zones, build, times=max(20, round(300 * scale)))
    yield Row(
        what=f"{name}, {count:,} messages, steady",
        figure=f"{steady * 1e3:.3f} ms",
        floor=f"`orjson.dumps` of ready dicts: {floor * 1e3:.3f} ms",
        ratio=f"{steady / floor:.2f}",
        goal="≤ 0.1 ms" if count == 1_000 else "",
        met=steady <= GOAL if count == 1_000 else None,
    )
    yield Row(
        what=f"{name}, {count:,} messages, cold",
        figure=f"{cold * 1e3:.2f} ms",
        floor=f"the same: {floor * 1e3:.3f} ms",
        ratio=f"{cold / floor:.1f}",
    )


def _floor(records: list[StoredMessage], scale: float) -> float:
    messages = [
        {"role": record.role.value, "content": record.fields()["content"]} for record in records
    ]
    request = {**HEAD, "messages": messages}
    return median(lambda: orjson.dumps(request), times=max(20, round(300 * scale)))


def _steady(zones: Zones, build: Build, *, times: int) -> float:
    rendering = RequestRenderer()
    build(rendering, zones)
    taken: list[float] = []
    for message in talk(times):
        zones = zones.append(from_message(message))
        taken.append(seconds(partial(build, rendering, zones)))
    return statistics.median(taken)


if __name__ == "__main__":
    main(__doc__, rows)
