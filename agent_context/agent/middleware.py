"""What stands around an agent's runs, the calls of its model, and the calls of its tools."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from agent_context._validation import check_type, is_async
from agent_context.agent.run_request import RunRequest
from agent_context.messages import Completion
from agent_context.model_call import ModelCall, ModelMiddleware
from agent_context.providers.response import AgentResponse
from agent_context.tools.offload import in_thread, run_on_loop
from agent_context.tools.tool import ToolContext

__all__ = ["Middleware", "MiddlewareChain", "around_model", "around_run", "around_tool"]

I = TypeVar("I")  # noqa: E741 - what goes in
O = TypeVar("O")  # noqa: E741 - what comes out

Proceed = Callable[[I], Awaitable[O]]
Around = Callable[[I, Proceed[I, O]], Awaitable[O]]


class Middleware:
    """Stands around runs, model calls or tool calls: override what you need.

    Each method is given what is about to be done and `proceed`, which does it. It may change the
    one, call the other again or not at all, and return something else. Of several the first of the
    list is the outermost. They run on the program's event loop; a method that is written with `def`
    runs on a thread, where `proceed` returns its result without an `await`.
    """

    async def around_run(
        self, run: RunRequest, proceed: Callable[[RunRequest], Awaitable[AgentResponse]]
    ) -> AgentResponse:
        """A run, before its providers are asked and after its answer is stored.

        What this raises ends the run. `dataclasses.replace(run, messages=…)` changes it.
        """
        return await proceed(run)

    async def around_model(
        self, call: ModelCall, proceed: Callable[[ModelCall], Awaitable[Completion]]
    ) -> Completion:
        """One call of the model, before its answer is stored; a run with tools has several.

        What this raises ends the run, and the answer is not stored. `msgspec.structs.replace(call,
        options=…)` changes it.
        """
        return await proceed(call)

    async def around_tool(
        self, call: ToolContext, proceed: Callable[[ToolContext], Awaitable[object]]
    ) -> object:
        """One call of a tool that is allowed to run, within the tool's own time.

        What is returned is the result, and what is raised is told to the model as a failure.
        `call.with_arguments(…)` changes it.
        """
        return await proceed(call)


def around_run(function: Callable[..., Any]) -> Middleware:
    """Middleware of one function `(run, proceed)`; see `Middleware.around_run`."""
    return _of_function("around_run", function)


def around_model(function: Callable[..., Any]) -> Middleware:
    """Middleware of one function `(call, proceed)`; see `Middleware.around_model`."""
    return _of_function("around_model", function)


def around_tool(function: Callable[..., Any]) -> Middleware:
    """Middleware of one function `(call, proceed)`; see `Middleware.around_tool`."""
    return _of_function("around_tool", function)


def _of_function(name: str, function: Callable[..., Any]) -> Middleware:
    kind = type(getattr(function, "__name__", name), (Middleware,), {name: staticmethod(function)})
    made: Middleware = kind()
    return made


class MiddlewareChain:
    """The middleware of an agent, in order."""

    def __init__(self, middleware: Iterable[Middleware] = ()) -> None:
        """Raises `InvalidOptions` for what is no `Middleware`."""
        listed = tuple(check_type("middleware", each, Middleware) for each in middleware)
        self._runs = _overridden("around_run", listed)
        self._models = _overridden("around_model", listed)
        self._tools = _overridden("around_tool", listed)

    async def run(
        self, run: RunRequest, proceed: Callable[[RunRequest], Awaitable[AgentResponse]]
    ) -> AgentResponse:
        """Do a run by way of what stands around runs."""
        response: AgentResponse = await _compose(self._runs, proceed)(run)
        return check_type("around_run", response, AgentResponse)

    def around_tools(
        self, innermost: Sequence[Around[ToolContext, object]] = ()
    ) -> Around[ToolContext, object] | None:
        """What stands around calls of tools; None if nothing does."""
        return _join((*self._tools, *innermost))

    def around_models(
        self, innermost: Sequence[Around[ModelCall, Completion]] = ()
    ) -> ModelMiddleware | None:
        """What stands around calls of the model, to be run on this loop; None if nothing does."""
        around = _join((*self._models, *innermost))
        if around is None:
            return None
        return _on_loop(around, asyncio.get_running_loop(), contextvars.copy_context())


def _overridden(name: str, listed: Iterable[Middleware]) -> tuple[Around[Any, Any], ...]:
    own = getattr(Middleware, name)
    methods = [getattr(each, name) for each in listed if getattr(type(each), name) is not own]
    return tuple(map(_to_async, methods))


def _join(several: Sequence[Around[I, O]]) -> Around[I, O] | None:
    if not several:
        return None

    async def around(item: I, proceed: Proceed[I, O]) -> O:
        return await _compose(several, proceed)(item)

    return around


def _compose(several: Sequence[Around[I, O]], proceed: Proceed[I, O]) -> Proceed[I, O]:
    for around in reversed(several):
        proceed = partial(_call, around, proceed)
    return proceed


async def _call(around: Around[I, O], proceed: Proceed[I, O], item: I) -> O:
    return await around(item, proceed)


def _on_loop(
    around: Around[I, O], loop: asyncio.AbstractEventLoop, variables: contextvars.Context
) -> Around[I, O]:
    """The same, run on `loop` for a caller on another one, where `proceed` belongs."""

    async def there(item: I, proceed: Proceed[I, O]) -> O:
        here = asyncio.get_running_loop()

        async def back(item: I) -> O:
            async def work() -> O:
                return await proceed(item)

            # With the variables of whoever proceeds: a trace goes on with the request.
            return await run_on_loop(work, here, contextvars.copy_context())

        async def work() -> O:
            return await around(item, back)

        return await run_on_loop(work, loop, variables.copy())

    return there


def _to_async(function: Callable[..., Any]) -> Around[Any, Any]:
    return function if is_async(function) else _on_thread(function)


def _on_thread(function: Callable[..., Any]) -> Around[Any, Any]:
    """A synchronous function as an asynchronous one; it proceeds with a blocking call."""

    async def around(item: object, proceed: Proceed[Any, Any]) -> object:
        loop, begun = asyncio.get_running_loop(), set[Future[Any]]()

        async def work(item: object) -> object:
            return await proceed(item)

        def wait(item: object) -> object:
            future = asyncio.run_coroutine_threadsafe(work(item), loop)
            begun.add(future)
            return future.result()

        try:
            return await in_thread(partial(function, item, wait))
        finally:
            for future in begun:  # whoever waited is cancelled: nobody takes the result
                future.cancel()

    return around
