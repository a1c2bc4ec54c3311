"""Calls that fail again and again in the same way."""

from __future__ import annotations

from typing import Final

from agent_context.messages import ToolCall

__all__ = ["Repeats"]

_LIMIT: Final = 3


class Repeats:
    """Counts, over the rounds of a turn, how often a call has failed with the same words."""

    def __init__(self, *, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._failures: dict[tuple[str, str], tuple[str, int]] = {}

    def succeeded(self, call: ToolCall) -> None:
        """Forget that the call ever failed."""
        self._failures.pop((call.name, call.arguments), None)

    def failed(self, call: ToolCall, text: str) -> str:
        """The failure's text; at the limit the model is told to stop."""
        key = (call.name, call.arguments)
        before, times = self._failures.get(key, (text, 0))
        times = times + 1 if before == text else 1
        self._failures[key] = text, times
        if times < self._limit:
            return text
        return (
            f"{text}\n\nThis same call has now failed {times} times with the same error. Don't "
            "make it again: change the arguments, take another tool, or answer without it."
        )
