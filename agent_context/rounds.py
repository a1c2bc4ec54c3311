"""Who answers the model's tool calls while a turn goes on, round by round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from agent_context.messages import Completion, Message
from agent_context.options import SendOptions

__all__ = ["Round", "ToolLoop"]


class Round(Struct, frozen=True):
    """What came of the calls of one answer. The model is asked again, with it."""

    results: Sequence[Message]
    """A tool message for each call, in the order of the calls; others may follow."""
    options: SendOptions | None = None
    """Laid over the turn's own for its later calls."""


@runtime_checkable
class ToolLoop(Protocol):
    """Carries out what the model asks for."""

    async def answer(
        self, completion: Completion, done: Callable[[Message], object]
    ) -> Round | None:
        """The round, or None to end the turn here and leave the calls open.

        Called on the library's I/O loop, which it must not block, for every answer with tool
        calls. `done` is told each result as soon as it is there, so that it outlives a crash or
        a cancelled turn. Cancelled with the turn; what it raises ends the turn.
        """
        ...
