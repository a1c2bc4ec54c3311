"""Checks of what comes from outside, where the annotations may not have been read."""

from __future__ import annotations

from typing import TypeVar

from agent_context.errors import InvalidOptions

__all__ = ["check_type"]

T = TypeVar("T")


def check_type(name: str, value: T, kind: type) -> T:
    """`value`, if it is a `kind`. Raises `InvalidOptions` that names the argument."""
    if not isinstance(value, kind):
        raise InvalidOptions(f"{name}: {kind.__name__} expected, not {type(value).__name__}")
    return value
