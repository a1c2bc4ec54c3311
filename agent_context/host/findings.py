"""What a host finds when it looks at its own process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pykka

from agent_context.conversation.seat import Activity, HowBusy
from agent_context.errors import MailboxFull
from agent_context.host.house import House
from agent_context.host.seats import HostSeat
from agent_context.stores.store import Finding

__all__ = ["findings"]

_PATIENCE: Final = 5.0
_NEARLY_ALL: Final = 0.8
_FILES: Final = (Path("/proc/self/fd"), Path("/dev/fd"))


def findings(house: House, limit: int) -> Iterator[Finding]:
    """How many conversations are awake, what they do, and what that takes."""
    seats = house.live()
    count = sum(not seat.asked for seat in seats)
    yield Finding("live", ok=count <= limit, text=f"{count} conversations are awake, of {limit}")
    yield _turns(seats)
    yield Finding("threads", ok=True, text=f"{threading.active_count()} threads")
    if (files := _files()) is not None:
        yield files


def _turns(seats: list[HostSeat]) -> Finding:
    replies = [reply for seat in seats if (reply := _asked(seat)) is not None]
    end = time.monotonic() + _PATIENCE
    activities: list[Activity] = []
    late = 0
    for reply in replies:
        try:
            activities.append(reply.get(timeout=max(0.0, end - time.monotonic())))
        except pykka.ActorDeadError:
            continue
        except pykka.Timeout:
            late += 1
    running, waiting = sum(a.running for a in activities), sum(a.waiting for a in activities)
    text = f"{running} turns run, {waiting} wait"
    if late:
        text += f"; {late} conversations gave no answer in {_PATIENCE:.0f} s"
    return Finding("turns", ok=not late, text=text)


def _asked(seat: HostSeat) -> pykka.Future[Activity] | None:
    try:
        return seat.actor_ref.ask(HowBusy(), block=False)
    except MailboxFull:
        return None


def _files() -> Finding | None:
    """Open files, where that can be found out."""
    folder = next((folder for folder in _FILES if folder.is_dir()), None)
    if sys.platform == "win32" or folder is None:
        return None
    import resource

    count = sum(1 for _ in folder.iterdir())
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    known = limit != resource.RLIM_INFINITY
    ok = not known or count < limit * _NEARLY_ALL
    return Finding("files", ok=ok, text=f"{count} open files" + (f", of {limit}" if known else ""))
