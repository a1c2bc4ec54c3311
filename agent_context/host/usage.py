"""What the turns of a store's conversations used, added up from its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from msgspec import Struct

from agent_context._actor.replay import decode_completion
from agent_context.errors import InvalidOptions
from agent_context.messages import TurnUsage, Usage
from agent_context.stores.store import FeedEntry, Store

__all__ = ["UsageBy", "UsageTotals", "sum_usage"]

UsageBy = Literal["model", "conversation", "day"]
"""How totals are told apart: the model that ended a turn, the conversation, or the day (UTC)."""


class UsageTotals(Struct, frozen=True):
    """What several turns used together."""

    turns: int
    calls: int
    """Of models, those of tool rounds and summaries included."""
    usage: Usage
    costs: Mapping[str, float]
    """What they cost, by currency."""
    unpriced: int
    """Turns among them whose cost isn't known."""


class _Turn(Struct, frozen=True):
    group: str
    used: TurnUsage


_PAGE: Final = 1_000


def sum_usage(store: Store, since: datetime | None, by: UsageBy) -> dict[str, UsageTotals]:
    """The totals of all turns that ended since then, by group; reads the whole log."""
    group = _GROUPS.get(by)
    if group is None:
        raise InvalidOptions(f"by: one of {', '.join(_GROUPS)}, not {by!r}")
    if since is not None and since.tzinfo is None:
        raise InvalidOptions("since: a time with its zone, such as datetime.now(UTC)")
    start = 0.0 if since is None else since.timestamp()
    turns: dict[str, list[TurnUsage]] = {}
    for turn in _read_turns(store, start, group):
        turns.setdefault(turn.group, []).append(turn.used)
    return {name: _total(turns[name]) for name in sorted(turns)}


def _read_turns(
    store: Store, start: float, group: Callable[[FeedEntry, str], str]
) -> Iterator[_Turn]:
    position = 0
    while page := store.feed(after=position, limit=_PAGE):
        for fed in page:
            position = fed.position
            # Most entries hold no answer: they need not be parsed.
            if fed.entry.timestamp < start or b'"answer"' not in fed.entry.payload:
                continue
            if answer := decode_completion(fed.entry):
                yield _Turn(group(fed, str(answer.get("model") or "")), _used(answer))


def _used(answer: Mapping[str, object]) -> TurnUsage:
    """What a turn used; of one that was stored by an older version its last call alone."""
    told = answer.get("turn")
    if told is not None:
        return TurnUsage.model_validate(told)
    return TurnUsage(calls=1, usage=Usage.model_validate(answer.get("usage") or {}))


def _total(turns: Iterable[TurnUsage]) -> UsageTotals:
    several = tuple(turns)
    costs: dict[str, float] = {}
    for cost in (turn.cost for turn in several):
        if cost is not None:
            costs[cost.currency] = costs.get(cost.currency, 0.0) + cost.amount
    return UsageTotals(
        turns=len(several),
        calls=sum(turn.calls for turn in several),
        usage=Usage.total(turn.usage for turn in several),
        costs=costs,
        unpriced=sum(turn.cost is None for turn in several),
    )


_GROUPS: Final[Mapping[str, Callable[[FeedEntry, str], str]]] = {
    "model": lambda _, model: model,
    "conversation": lambda fed, _: fed.conversation_id,
    "day": lambda fed, _: f"{datetime.fromtimestamp(fed.entry.timestamp, UTC):%Y-%m-%d}",
}
