"""What a compression strategy is: a pure plan for a view of the zones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent_context.groups import cuts
from agent_context.records import Record
from agent_context.vector import Vector
from agent_context.zones import Zones

__all__ = ["Plan", "Strategy", "View", "Wish"]


@dataclass(frozen=True, slots=True)
class View:
    """What a strategy plans for."""

    zones: Zones
    count: Callable[[Record], int]
    """Tokens of a message. Cheap: counts are kept."""
    budget: int
    """Tokens that the three zones may take together."""

    @property
    def history(self) -> Vector:
        """The incremental zone: what may be cut."""
        return self.zones.incremental

    def tokens(self, records: Iterable[Record]) -> int:
        """Tokens of these messages."""
        return sum(map(self.count, records))

    def _cuts(self) -> Iterator[int]:
        return cuts(self.history, self.zones.open_calls)

    def newest_cut(self, *, keep: int) -> int:
        """The newest legal cut that leaves at least `keep` messages and the newest group."""
        latest = min(len(self.history) - keep, len(self.history) - 1)
        return next((cut for cut in self._cuts() if cut <= latest), 0)

    def fitting_cut(self, room: int) -> int:
        """The oldest legal cut whose rest takes at most `room` tokens; the newest group stays.

        Reads the history from its end, and no further than `room` reaches.
        """
        sizes = _sizes_from_end(self)
        found = 0
        for cut in self._cuts():
            if cut == len(self.history):
                continue
            if found and sizes(cut) > room:
                return found
            found = cut
            if sizes(cut) > room:
                return found
        return 0


def _sizes_from_end(view: View) -> Callable[[int], int]:
    """Tokens behind an index, for indexes that come in falling order."""
    records = reversed(view.history)
    reached, total = len(view.history), 0

    def size(index: int) -> int:
        nonlocal reached, total
        while reached > index:
            total += view.count(next(records))
            reached -= 1
        return total

    return size


@dataclass(frozen=True, slots=True)
class Wish:
    """A wish for a summary."""

    prompt: str
    target: int
    """Most tokens that the summary may take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What should become of the zones."""

    cut: int = 0
    """How many of the oldest incremental messages go."""
    replaced: Mapping[int, Record] = field(default_factory=dict[int, Record])
    """Incremental messages that stay in a shorter form, by index."""
    wish: Wish | None = None
    """With it, what goes and the older summaries become one summary."""


class Strategy(ABC):
    """A way to make a history smaller. A frozen value; planning does no I/O."""

    @abstractmethod
    def plan(self, view: View) -> Plan | None:
        """What to do with `view`, or None if there is nothing to do.

        `cut` must be one of `groups.cuts`: anything else is refused with `CompressionError`.
        """

    @property
    def steps(self) -> tuple[Strategy, ...]:
        """The strategies to carry out one after the other until the view fits its budget."""
        return (self,)

    @property
    def name(self) -> str:
        """How reports call it."""
        return type(self).__name__
