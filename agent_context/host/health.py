"""Health checks of a host's own process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pykka

from agent_context._actor.lifecycle import ActivityStats, GetActivity
from agent_context.errors import MailboxFull
from agent_context.host.activation import ActivationRegistry
from agent_context.host.slot import Slot
from agent_context.stores.store import HealthCheck

__all__ = ["check_process"]

_PATIENCE: Final = 5.0
_NEARLY_ALL: Final = 0.8
_FILES: Final = (Path("/proc/self/fd"), Path("/dev/fd"))


def check_process(registry: ActivationRegistry, limit: int) -> Iterator[HealthCheck]:
    """How many conversations are active, how busy they are, and what that costs."""
    slots = registry.active_slots()
    count = sum(not slot.passivation_requested for slot in slots)
    yield HealthCheck(
        "live", ok=count <= limit, text=f"{count} conversations are awake, of {limit}"
    )
    yield _check_turns(slots)
    yield HealthCheck("threads", ok=True, text=f"{threading.active_count()} threads")
    if (files := _check_files()) is not None:
        yield files


def _check_turns(slots: list[Slot]) -> HealthCheck:
    replies = [reply for slot in slots if (reply := _ask_activity(slot)) is not None]
    end = time.monotonic() + _PATIENCE
    activities: list[ActivityStats] = []
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
    return HealthCheck("turns", ok=not late, text=text)


def _ask_activity(slot: Slot) -> pykka.Future[ActivityStats] | None:
    try:
        return slot.actor_ref.ask(GetActivity(), block=False)
    except MailboxFull:
        return None


def _check_files() -> HealthCheck | None:
    """The number of open files, where the system tells it."""
    folder = next((folder for folder in _FILES if folder.is_dir()), None)
    if sys.platform == "win32" or folder is None:
        return None
    import resource

    count = sum(1 for _ in folder.iterdir())
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    known = limit != resource.RLIM_INFINITY
    ok = not known or count < limit * _NEARLY_ALL
    return HealthCheck(
        "files", ok=ok, text=f"{count} open files" + (f", of {limit}" if known else "")
    )
