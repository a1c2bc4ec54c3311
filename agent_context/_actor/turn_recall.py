"""What one turn recalls: once, before its first call, for the words that begin it."""

from __future__ import annotations

from collections.abc import Iterable

from agent_context._actor.hidden_messages import HiddenMessages, RecalledMessages
from agent_context._actor.model_client import BoundModel
from agent_context._context.stored_message import StoredMessage
from agent_context._context.tokens import counter
from agent_context._context.zones import Zones
from agent_context._runtime import io_loop
from agent_context.compression.recall import Recall
from agent_context.messages import Role

__all__ = ["TurnRecall"]

_QUERY = 4_000
"""Characters of what is said that are looked for."""


class TurnRecall:
    """The messages that a turn sends again. Only its task uses it."""

    def __init__(self, settings: Recall | None, hidden: HiddenMessages | None) -> None:
        self._settings = settings
        self._hidden = hidden
        self.is_due = settings is not None and hidden is not None
        """Whether the turn has not looked for anything yet, and there may be something."""
        self.found: RecalledMessages | None = None

    @property
    def records(self) -> tuple[StoredMessage, ...]:
        """What is sent in front of the turn's own words."""
        return (self.found.record,) if self.found else ()

    def drop(self) -> bool:
        """Send it no longer; whether there was anything."""
        dropped, self.found = self.found is not None, None
        return dropped

    async def find(
        self,
        model: BoundModel,
        zones: Zones,
        said: Iterable[StoredMessage],
        room: int | None = None,
    ) -> RecalledMessages | None:
        """Look for what the newest words ask for: within the strategy's budget, and `room`."""
        self.is_due = False
        settings, hidden = self._settings, self._hidden
        query = _newest_words(zones, tuple(said))
        budget = settings.tokens_within(model.facts.context_window) if settings else 0
        budget = budget if room is None else min(budget, room)
        if settings is None or hidden is None or not query or budget <= 0:
            self.found = None
            return None
        known, factor = settings, model.calibration_factor

        def look() -> RecalledMessages | None:
            shown, count = tuple(zones.incremental), counter(model.facts.vocabulary).count
            return hidden.recall(query, known, shown, budget=int(budget / factor), count=count)

        self.found = await io_loop().offload(look)
        return self.found


def _newest_words(zones: Zones, said: tuple[StoredMessage, ...]) -> str:
    texts = [record.message.text for record in said if record.role is Role.USER]
    if not texts:
        newest = (record for record in reversed(zones.incremental) if record.role is Role.USER)
        texts = [record.message.text for record in newest][:1]
    return "\n".join(texts)[-_QUERY:]
