"""Run-time checks of arguments, for callers that no type checker has checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from agent_context.errors import InvalidOptions

__all__ = ["check_callback", "check_type", "missing_extra"]

T = TypeVar("T")


def check_type(name: str, value: T, kind: type) -> T:
    """`value`, if it is a `kind`. Raises `InvalidOptions` that names the argument."""
    if not isinstance(value, kind):
        raise InvalidOptions(f"{name}: {kind.__name__} expected, not {type(value).__name__}")
    return value


F = TypeVar("F", bound=Callable[..., object])


def check_callback(name: str, function: F) -> F:
    """`function`, if it can be called and is not asynchronous: nobody would await it.

    Raises `InvalidOptions` that names the argument.
    """
    if not callable(function):
        raise InvalidOptions(f"{name}: a function expected, not {type(function).__name__}")
    if _is_async(function):
        raise InvalidOptions(
            f"{name}: a plain function expected: this one is asynchronous, and nobody would await "
            "it; have a plain one hand over to your loop: loop.call_soon_threadsafe(…)"
        )
    return function


def _is_async(function: Callable[..., object]) -> bool:
    while isinstance(function, partial):
        function = function.func
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, type(function).__call__)
    )


def missing_extra(what: str, package: str, extra: str) -> InvalidOptions:
    """The error of something that needs a package which is not installed."""
    return InvalidOptions(
        f"{what} needs the package {package}, which is not installed: "
        f"pip install 'context-actor[{extra}]'"
    )
