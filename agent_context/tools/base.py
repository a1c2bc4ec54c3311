"""A tool that can be run, and what it gets to know of the call."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from threading import Event
from typing import Literal

from msgspec import Struct, field
from pydantic import Field

from agent_context.messages import ToolCall
from agent_context.tools.spec import Tool

__all__ = ["Approval", "CallableTool", "ToolContext"]

logger = logging.getLogger(__name__)

Approval = Literal["never", "require"] | Callable[[ToolCall], bool]
"""Whether somebody must allow a call before it runs; a function decides by the call.

A function that raises counts as `require`.
"""


class ToolContext(Struct, frozen=True):
    """What a running tool may ask for: a parameter annotated with this type gets it.

    The model is told nothing of that parameter.
    """

    call: ToolCall
    conversation_id: str | None = None
    progress: Callable[[ToolCall, str], object] | None = None
    stopped: Event = field(default_factory=Event)

    @property
    def call_id(self) -> str:
        """The id of the call, as the model's server gave it."""
        return self.call.id

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: its time is up, or the turn has ended.

        A synchronous function can't be interrupted. One that takes long should look at this.
        """
        return self.stopped.is_set()

    def report(self, text: str) -> None:
        """Say how far the work is, to whoever listens."""
        if self.progress is None:
            return
        try:
            self.progress(self.call, text)
        except Exception:
            # It is not the tool's fault.
            logger.exception("A listener to the progress of %s failed", self.call.name)


class CallableTool(Tool, ABC):
    """A tool that a `Toolbox` can run. How it is run is no part of what the model is told."""

    timeout: float | None = Field(default=None, gt=0, exclude=True)
    """Seconds for one call; None takes the toolbox's."""
    approval: Approval = Field(default="never", exclude=True)
    max_result: int | None = Field(default=None, gt=0, exclude=True)
    """Characters of a result that the model gets to read at once; None takes the toolbox's."""

    @property
    def spec(self) -> Tool:
        """What the model is told, alone."""
        return Tool(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            strict=self.strict,
        )

    def needs_approval(self, call: ToolCall) -> bool:
        """Whether this call must be allowed before it runs."""
        if not callable(self.approval):
            return self.approval == "require"
        try:
            return bool(self.approval(call))
        except Exception:  # noqa: BLE001 - what can't be judged is not let through
            return True

    @property
    def interruptible(self) -> bool:
        """Whether cancelling a call ends what it does."""
        return True

    def accepts(self, arguments: str) -> bool:
        """Whether the arguments fit, as far as can be told without running: or nobody is asked."""
        del arguments
        return True

    @abstractmethod
    async def call(self, arguments: str, context: ToolContext) -> object:
        """Run with the arguments as the model wrote them.

        Raises `ToolError` with a text for the model. Whatever else is raised is told to it with
        its type.
        """
