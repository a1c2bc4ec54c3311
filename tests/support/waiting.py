"""Waiting: for what announces itself, and for what doesn't. Whoever waits in vain fails."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Protocol

__all__ = ["WAIT", "join", "wait_for", "wait_until"]

WAIT = 60.0
"""Seconds, more than anything takes on a loaded machine: they end a test that would hang."""


class Waitable(Protocol):
    """An `Event`, and what waits like one: a job, a flag."""

    def wait(self, timeout: float, /) -> bool: ...


def wait_for(*events: Waitable, timeout: float = WAIT) -> None:
    """Wait until each of them has come."""
    for event in events:
        assert event.wait(timeout), f"{event} never came"


def join(*threads: Thread, timeout: float = WAIT) -> None:
    """Wait until each of them has ended."""
    for thread in threads:
        thread.join(timeout)
        assert not thread.is_alive(), f"{thread} never ended"


def wait_until(true: Callable[[], bool], *, timeout: float = WAIT) -> None:
    """Look again and again: for the state of a database or of another process."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.01)
