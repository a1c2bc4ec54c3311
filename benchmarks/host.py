"""Conversations of a host on a SQLite file: how many, how soon, and what they take.

Memory is the growth of the resident set after a full collection; a conversation holds 20 messages
of 200 characters. Each activation is that of a conversation that was parked: claim, read, start.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

from agent_context import Append, ContextRef, Host, Message
from agent_context._actor.changes import Appended
from agent_context._actor.replay import encode_change, encode_created
from agent_context._context.stored_message import from_message
from agent_context._context.zones import Zones
from agent_context.protocol import Len
from agent_context.ref import LocalChannel
from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Entry, Write
from benchmarks.material import MuteBackend, talk, text
from benchmarks.report import Row, main, quantile, rate, seconds

__all__ = ["rows"]

KNOWN: Final = 100_000
LIVE: Final = 10_000
MESSAGES: Final = 20
AT_ONCE: Final = 500
ROUNDS: Final = 5


def rows(scale: float) -> Iterator[Row]:
    with a_host(live=1_000_000) as host:
        yield from many(host, known=round(KNOWN * scale), live=round(LIVE * scale))
    for events in (50, 10_000):
        yield activation(max(50, round(events * scale)) if events > 50 else 50, scale)
    yield from one_long(max(1_000, round(10_000 * scale)))
    yield through_a_ref(max(1_000, round(100_000 * scale)))


@contextmanager
def a_host(*, live: int, idle: float | None = None) -> Generator[Host]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder, "talks.db"))
        with Host(store, MuteBackend(), live=live, idle=idle) as host:
            yield host


def many(host: Host, *, known: int, live: int) -> Iterator[Row]:
    """Conversations in the store, some of them awake, parked and woken again and again."""
    know(host, known)
    names = [f"c{number:06}" for number in range(live)]
    refs = [host.get(name) for name in names[: live // 100]]
    park(host)
    before = resident()
    waking = seconds(lambda: refs.extend(get_all(host, names[len(refs) :])))
    refs = [*get_all(host, names[: live // 100]), *refs[live // 100 :]]
    awake = resident() - before
    yield Row(
        what=f"conversations awake, of {known:,} known to one host",
        figure=f"{len(host.active_ids()):,}, {awake / live / 1000:.1f} kB each",
        goal=f"≥ {live:,}",
        met=len(host.active_ids()) >= live,
    )
    yield Row(what="woken one by one by 8 threads", figure=rate(live / waking))
    parking = seconds(lambda: park(host))
    yield Row(what="parked, all at once", figure=rate(live / parking))
    yield flat(host, names[: live // 10])


def know(host: Host, count: int) -> None:
    """Put conversations into the store as their hosts would have left them."""
    store = host.store
    kind, payload = encode_created(Zones())
    said = [encode_change(Appended(from_message(Message.user(text())))) for _ in range(MESSAGES)]
    entries = tuple(
        Entry(seq, kind, payload, time.time())
        for seq, (kind, payload) in enumerate([(kind, payload), *said], 1)
    )
    for start in range(0, count, AT_ONCE):
        names = [f"c{number:06}" for number in range(start, min(count, start + AT_ONCE))]
        writes = [
            Write(conversation_id=name, epoch=store.claim(name).epoch, head=0, entries=entries)
            for name in names
        ]
        assert not any(store.write(writes))


def get_all(host: Host, names: Sequence[str]) -> list[ContextRef]:
    refs: list[ContextRef] = []

    def work(part: Sequence[str]) -> None:
        refs.extend([host.get(name) for name in part])

    run([partial(work, names[start::8]) for start in range(8)])
    return refs


def park(host: Host) -> None:
    assert host.passivate(timeout=300)


def flat(host: Host, names: Sequence[str]) -> Row:
    """Memory over cycles of waking and parking."""

    def cycle() -> None:
        get_all(host, names)
        park(host)

    for _ in range(2 * ROUNDS):
        cycle()  # until the threads and caches have what they take
    before = resident()
    for _ in range(ROUNDS):
        cycle()
    grown = resident() - before
    wakings = ROUNDS * len(names)
    return Row(
        what=f"memory grown over {wakings:,} times parked and woken",
        figure=f"{grown / 1e6:.1f} MB ({grown / wakings:,.0f} bytes each)",
        goal="flat",
        met=grown / wakings < 200,
    )


def activation(events: int, scale: float) -> Row:
    """Waking one conversation, parked with a snapshot and the events since."""
    times: list[float] = []
    with a_host(live=1_000_000) as host:
        ref = host.get("c")
        for message in talk(events):
            ref.tell(Append(message))
        ref.ask(Len(), timeout=120)
        for _ in range(max(20, round(300 * scale))):
            park(host)
            times.append(seconds(lambda: host.get("c").ask(Len())))
    return Row(
        what=f"activation of a conversation with {events:,} events: p50 / p99",
        figure=f"{quantile(times, 0.5) * 1e3:.1f} / {quantile(times, 0.99) * 1e3:.1f} ms",
    )


def one_long(appends: int) -> Iterator[Row]:
    """One conversation that grows: its first part against its last."""
    with a_host(live=10) as host:
        ref = host.get("c")
        times = [seconds(lambda: ref.ask(Append(Message.user(text())))) for _ in range(appends)]
        host.drain()
        assert isinstance(host.store, SqliteStore)
        size = host.store.path.stat().st_size
    part = appends // 5
    first, last = sum(times[:part]), sum(times[-part:])
    yield Row(
        what=f"{appends:,} appends to one conversation: the last fifth against the first",
        figure=f"{rate(appends / sum(times))}, {last / first:.2f} times as long",
        goal="linear",
        met=last / first < 1.5,
    )
    yield Row(
        what="bytes on disk per message of 200 characters",
        figure=f"{size / appends:,.0f}",
        floor="its text: 200",
        ratio=f"{size / appends / 200:.1f}",
    )


def through_a_ref(asks: int) -> Row:
    """What it costs that a ref of a host can wake its conversation."""
    with a_host(live=10) as host:
        hosted = host.get("c")
        plain = ContextRef(
            LocalChannel(hosted.actor_ref), hosted.id, turn_timeout=hosted.turn_timeout
        )
        mine, floor = list[float](), list[float]()
        for _ in range(5):
            floor.append(seconds(lambda: [plain.ask(Len()) for _ in range(asks // 5)]))
            mine.append(seconds(lambda: [hosted.ask(Len()) for _ in range(asks // 5)]))
    one, other = min(mine) / (asks // 5) * 1e6, min(floor) / (asks // 5) * 1e6
    return Row(
        what="an ask through a host's ref",
        figure=f"{one:.1f} µs",
        floor=f"a plain ref: {other:.1f} µs",
        ratio=f"{one / other:.2f}",
    )


def run(works: Sequence[Callable[[], object]]) -> None:
    threads = [Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(__doc__, rows)
