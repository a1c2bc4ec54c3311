"""The time, and other facts that change from run to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from typing import Any

from agent_context._validation import check_callback
from agent_context.errors import InvalidOptions
from agent_context.providers.context import SessionContext
from agent_context.providers.provider import AgentLike, ContextProvider
from agent_context.sessions.session import AgentSession

__all__ = ["ClockProvider"]

Fact = str | Callable[[], object]


class ClockProvider(ContextProvider):
    """Tells the model the time, and facts such as the working directory.

    They are sent last and never stored: what stands before them is the same in the next request,
    and the vendor's prompt cache finds it again.
    """

    kind = "environment"

    def __init__(
        self,
        zone: str | tzinfo = "UTC",
        *,
        facts: Mapping[str, Fact] | None = None,
        now: Callable[[tzinfo], datetime] = datetime.now,
        source_id: str = "clock",
    ) -> None:
        """`zone` is a name such as Europe/Berlin. A fact is a text, or called in every run."""
        super().__init__(source_id)
        self.zone = _zone(zone) if isinstance(zone, str) else zone
        self.facts: Mapping[str, Fact] = dict(facts or {})
        for name, fact in self.facts.items():
            if callable(fact):
                check_callback(f"facts[{name!r}]", fact)
        self._now = now

    def text(self) -> str:
        """What the model is told now, to the minute."""
        now = self._now(self.zone)
        lines = [f"It is {now:%A, %Y-%m-%d %H:%M} ({self.zone})."]
        for name, fact in self.facts.items():
            lines.append(f"{name}: {fact() if callable(fact) else fact}")
        return "\n".join(lines)

    async def before_run(
        self,
        *,
        agent: AgentLike,
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],
    ) -> None:
        """Add the text to what is sent last."""
        del agent, session, state
        context.extend_scratch(self, self.text())


def _zone(name: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # KeyError: of zoneinfo itself
        raise InvalidOptions(
            f"zone: {name!r} is not known here; a name such as Europe/Berlin is expected, and on "
            "systems without a database of zones the package tzdata"
        ) from error
