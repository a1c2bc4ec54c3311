"""Waiting for what nobody announces: the state of a database or of another process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], bool], *, timeout: float = 20.0) -> None:
    """Look again and again."""
    end = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.01)
