"""Checks of what goes into a run and of what comes out of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from agent_context._validation import is_async
from agent_context.agent.middleware import Middleware, around_model, around_run
from agent_context.agent.run_request import RunRequest
from agent_context.errors import GuardrailTripped, InvalidOptions
from agent_context.messages import Completion
from agent_context.model_call import ModelCall
from agent_context.providers.response import AgentResponse
from agent_context.tools.offload import in_thread

__all__ = ["input_guardrail", "output_guardrail"]

T = TypeVar("T")
Check = Callable[[T], str | Awaitable[str | None] | None]
"""Says why something must not pass; None lets it pass. A synchronous one runs on a thread."""


def input_guardrail(check: Check[RunRequest]) -> Middleware:
    """Middleware that looks at a run before it begins.

    Where `check` gives a reason, the run ends with `GuardrailTripped`: nothing is sent or stored.
    """

    async def guard(
        run: RunRequest, proceed: Callable[[RunRequest], Awaitable[AgentResponse]]
    ) -> AgentResponse:
        await _apply(check, run)
        return await proceed(run)

    return around_run(guard)


def output_guardrail(check: Check[Completion]) -> Middleware:
    """Middleware that looks at the answer of a run, before it is stored; not at calls of tools.

    Where `check` gives a reason, the run ends with `GuardrailTripped`, and the answer is not
    stored. Who reads a stream has seen its words by then.
    """

    async def guard(
        call: ModelCall, proceed: Callable[[ModelCall], Awaitable[Completion]]
    ) -> Completion:
        completion = await proceed(call)
        if not completion.tool_calls:
            await _apply(check, completion)
        return completion

    return around_model(guard)


async def _apply(check: Check[T], what: T) -> None:
    found: object = check(what) if is_async(check) else await in_thread(partial(check, what))
    reason = await found if inspect.isawaitable(found) else found
    name = getattr(check, "__name__", "guardrail")
    if isinstance(reason, str):
        raise GuardrailTripped(f"{name}: {reason}")
    if reason is not None:
        raise InvalidOptions(f"{name}: a guardrail gives a reason or None, not {reason!r}")
