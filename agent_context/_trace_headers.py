"""Headers that a model's request carries for whoever traces it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["send_with", "trace_headers"]

_NONE: Mapping[str, str] = {}
_headers: ContextVar[Mapping[str, str]] = ContextVar("agent_context_trace_headers", default=_NONE)


def trace_headers() -> Mapping[str, str]:
    """The headers for a request that is made here; usually none."""
    return _headers.get()


@contextmanager
def send_with(headers: Mapping[str, str]) -> Generator[None]:
    """Have requests that are made inside carry these headers."""
    token = _headers.set(headers)
    try:
        yield
    finally:
        _headers.reset(token)
