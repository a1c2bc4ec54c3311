"""What a compression strategy is: a pure function from a view of the zones to a plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import legal_cuts
from agent_context._context.zones import Zones
from agent_context.compression.pinning import pinned_indexes
from agent_context.messages import MessageId

__all__ = ["CompressionPlan", "PlanningView", "Strategy", "SummaryRequest"]


@dataclass(frozen=True, slots=True)
class PlanningView:
    """What a strategy gets to plan with."""

    zones: Zones
    count: Callable[[StoredMessage], int]
    """Counts the tokens of a message. Cheap: counts are cached."""
    budget: int
    """Tokens that the three zones should take together."""
    window_budget: int | None = None
    """Tokens that they can take together within the window; None if that is the budget."""
    allow_newest: bool = False
    """Whether even the newest group may go: nothing else makes room for what is sent behind it."""
    pinned_ids: frozenset[MessageId] = frozenset()
    """Messages that stay, wherever the history is cut: the words that began the running turn."""

    @property
    def history(self) -> PersistentVector:
        """The incremental zone: what may be cut."""
        return self.zones.incremental

    def tokens(self, records: Iterable[StoredMessage]) -> int:
        """Tokens of these messages."""
        return sum(map(self.count, records))

    def pinned_indexes(self) -> frozenset[int]:
        """Indexes of the messages that stay in the history wherever it is cut."""
        named = self._named_indexes() if self.pinned_ids else frozenset[int]()
        if not self.zones.has_pinned:
            return named
        room = self.budget if self.window_budget is None else self.window_budget
        return named | pinned_indexes(self.history, self.count, room // 2)

    def _named_indexes(self) -> frozenset[int]:
        wanted, found = set(self.pinned_ids), set[int]()
        index = len(self.history)
        for record in reversed(self.history):
            if not wanted:
                break
            index -= 1
            if record.id in wanted:
                wanted.discard(record.id)
                found.add(index)
        return frozenset(found)

    def split(self, cut: int) -> tuple[tuple[StoredMessage, ...], tuple[StoredMessage, ...]]:
        """Of the first `cut` messages those that go, and those that stay all the same."""
        protected = self.pinned_indexes()
        older = tuple(self.history.head(cut))
        gone = tuple(record for i, record in enumerate(older) if i not in protected)
        return gone, tuple(record for i, record in enumerate(older) if i in protected)

    def _cuts(self) -> Iterator[int]:
        return legal_cuts(self.history, self.zones.open_calls)

    @property
    def _newest(self) -> int:
        return len(self.history) - (0 if self.allow_newest else 1)

    def newest_cut(self, *, keep: int) -> int:
        """The newest legal cut that leaves at least `keep` messages, and the newest group.

        0 if nothing would go.
        """
        latest = min(len(self.history) - keep, self._newest)
        cut = next((cut for cut in self._cuts() if cut <= latest), 0)
        return cut if _frees_anything(cut, self.pinned_indexes()) else 0

    def oldest_cut_within(self, room: int) -> int:
        """The oldest legal cut whose rest takes at most `room` tokens; the newest group stays.

        What is protected takes its part of the room. 0 if nothing needs to go, or nothing would.
        Counts the history from its end, and no further than `room` reaches.
        """
        protected = self.pinned_indexes()
        sizes = _sizes_from_end(self, protected)
        found = 0
        for cut in self._cuts():
            if cut > self._newest:
                continue
            if found and sizes(cut) > room:
                break
            found = cut
            if sizes(cut) > room:
                break
        else:
            return 0
        return found if _frees_anything(found, protected) else 0


def _frees_anything(cut: int, protected: frozenset[int]) -> bool:
    return sum(1 for index in protected if index < cut) < cut


def _sizes_from_end(view: PlanningView, protected: frozenset[int]) -> Callable[[int], int]:
    """Tokens that stay with a cut at an index, for indexes that come in falling order."""
    held = {index: view.count(view.history[index]) for index in protected}
    records = reversed(view.history)
    reached, total = len(view.history), 0

    def size(index: int) -> int:
        nonlocal reached, total
        while reached > index:
            total += view.count(next(records))
            reached -= 1
        return total + sum(tokens for place, tokens in held.items() if place < index)

    return size


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """What a strategy asks for when it wants a summary."""

    prompt: str
    target: int
    """Maximum tokens of the summary."""


@dataclass(frozen=True, slots=True)
class CompressionPlan:
    """How the zones should change."""

    cut: int = 0
    """How many of the oldest incremental messages go; the protected ones among them stay."""
    replaced: Mapping[int, StoredMessage] = field(default_factory=dict[int, StoredMessage])
    """Shorter forms of incremental messages that stay, by index."""
    summary: SummaryRequest | None = None
    """With it, what goes and the older summaries become one summary."""


class Strategy(ABC):
    """A way to make a history smaller. A frozen value; planning does no I/O."""

    @abstractmethod
    def plan(self, view: PlanningView) -> CompressionPlan | None:
        """What to do with `view`, or None if there is nothing to do.

        `cut` must be one of `legal_cuts`; anything else raises `CompressionError`.
        """

    @property
    def steps(self) -> tuple[Strategy, ...]:
        """The strategies to carry out one after the other until the view fits its budget."""
        return (self,)

    @property
    def name(self) -> str:
        """Its name in reports."""
        return type(self).__name__
