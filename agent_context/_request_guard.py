"""Whether this process may ask models over the network: tests may forbid it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from agent_context.errors import UsageError

__all__ = ["check_request", "forbid_requests"]

_forbidden = 0


@contextmanager
def forbid_requests() -> Generator[None]:
    """Have every request to a model's server raise `UsageError` in this block, in any thread.

    For tests that must not reach a vendor by accident. Backends with a transport of their own, an
    `httpx.MockTransport` for one, go on; so do scripted and embedded models, and what isn't ours.
    """
    global _forbidden  # noqa: PLW0603 - it is the process that asks nobody
    _forbidden += 1
    try:
        yield
    finally:
        _forbidden -= 1


def check_request(url: object) -> None:
    """Raises `UsageError` while requests are forbidden."""
    if _forbidden:
        raise UsageError(f"a request to {url} in a test: forbid_requests() holds here")
