"""Where this thread is: inside a handler or a callback that must not wait for itself."""

from collections.abc import Hashable
from threading import local


class _Scopes(local):
    # A thread, not a context: a task started from a callback runs elsewhere, and may wait.
    keys: tuple[Hashable, ...] = ()


_scopes = _Scopes()


class reentrancy_scope:  # noqa: N801
    """Mark the block as running inside `key`; blocks nest."""

    __slots__ = ("_before", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key = key

    def __enter__(self) -> None:
        self._before = _scopes.keys
        _scopes.keys = (*self._before, self._key)

    def __exit__(self, *_: object) -> None:
        _scopes.keys = self._before


def in_scope(key: Hashable) -> bool:
    """Tell whether this thread runs inside `key`, at any depth."""
    return key in _scopes.keys
