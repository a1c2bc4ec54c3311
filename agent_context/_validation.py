"""Run-time checks of arguments, for callers that no type checker has checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import ParamSpec, TypeVar

from agent_context.errors import InvalidOptions, UsageError

__all__ = [
    "check_async",
    "check_callback",
    "check_type",
    "explain_foreign_names",
    "is_async",
    "missing_extra",
]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def check_type(name: str, value: T, kind: type) -> T:
    """`value`, if it is a `kind`. Raises `InvalidOptions` that names the argument."""
    if not isinstance(value, kind):
        raise InvalidOptions(f"{name}: {kind.__name__} expected, not {type(value).__name__}")
    return value


def check_async(name: str, function: T) -> T:
    """`function`, if calling it gives something to await. Raises `InvalidOptions`."""
    if callable(function) and is_async(function):
        return function
    raise InvalidOptions(f"{name}: an async function is expected, not {function!r}")


def check_callback(name: str, function: T) -> T:
    """`function`, if it can be called and need not be awaited: nobody would.

    Raises `InvalidOptions` that names the argument.
    """
    if not callable(function):
        raise InvalidOptions(f"{name}: a callable is expected, not {type(function).__name__}")
    if is_async(function):
        raise InvalidOptions(
            f"{name}: it is called on a thread and can't be awaited: give a plain function, which "
            "may hand over to a loop: loop.call_soon_threadsafe(queue.put_nowait, …)"
        )
    return function


def is_async(function: Callable[..., object]) -> bool:
    """Whether calling it gives something to await or to iterate over on an event loop."""
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


def explain_foreign_names(
    names: Mapping[str, str],
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Have a function say what an argument of another library is called here."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() & names.keys():
                raise UsageError(f"{name}: it is called otherwise here: {names[name]}")
            return function(*args, **kwargs)

        return call

    return decorate
