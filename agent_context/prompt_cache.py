"""How much of the last request the next one repeats, why no more, and what a cache saves.

Pure: two requests are compared by what they say, whatever backend renders them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from enum import StrEnum
from itertools import chain, takewhile

from msgspec import Struct, field

from agent_context._context.stored_message import StoredMessage
from agent_context._context.tool_call_groups import legal_cuts
from agent_context._context.zones import Zone, Zones
from agent_context.messages import Role, Usage
from agent_context.models import CachePolicy
from agent_context.wire.dialect import Dialect
from agent_context.wire.repair import RepairKind, repair_slice

__all__ = [
    "CacheUsageReport",
    "PrefixChangeCause",
    "PrefixReport",
    "SentRequest",
    "SharedPrefix",
    "cache_entry_ends",
    "compare_requests",
    "predict_cache_use",
]

_MOST_ENDS = 32
_SUBSTANTIAL = 1_000
"""Tokens; fewer are not reported."""
_NEXT_TO_NONE = 0.1


class PrefixChangeCause(StrEnum):
    """Why a request doesn't begin with the last one."""

    BACKEND = "backend"
    MODEL = "model"
    TOOLS = "tools"
    TOOL_CHOICE = "tool_choice"
    THINKING = "thinking"
    EFFORT = "effort"
    RESPONSE_FORMAT = "response_format"
    CACHE_KEY = "cache_key"
    """`user_id`, `user` or `prompt_cache_key`: whose cache it is."""
    OPTION = "option"
    """Another field, of `SendOptions.extra` for one."""
    SYSTEM = "system"
    """The immutable zone."""
    COMPRESSION = "compression"
    EDIT = "edit"
    """Stored messages were changed, taken out, put in between, or imported."""
    REPAIR = "repair"
    """No edit, but an earlier message must now be sent differently: a late tool result, for one."""


_CAUSES = {
    **{cause.value: cause for cause in PrefixChangeCause},
    "reasoning_effort": PrefixChangeCause.EFFORT,
    "reasoning": PrefixChangeCause.EFFORT,
    "user": PrefixChangeCause.CACHE_KEY,
    "user_id": PrefixChangeCause.CACHE_KEY,
    "prompt_cache_key": PrefixChangeCause.CACHE_KEY,
}
_ORDER = list(PrefixChangeCause)


class PrefixReport(Struct, frozen=True, kw_only=True):
    """How one request compares with the one before it. Figures are tokens of input."""

    cause: PrefixChangeCause | None = None
    """Why it doesn't begin with all that was stored of the last one; None if it does."""
    fields: tuple[str, ...] = ()
    """The fields of the request that changed, in the vendor's words."""
    at: int | None = None
    """The first message that differs, as an index of the three zones, concatenated."""
    total: int
    before: int = 0
    """What the last request held; 0 if there was none."""
    shared: int = 0
    """What both begin with."""
    predicted: int | None = None
    """Tokens that the vendor's policy says are cached; None if no policy is known."""
    rule: CachePolicy | None = None
    usage: Usage | None = None
    """What the vendor counted, once it has answered."""

    @property
    def cached(self) -> int | None:
        """What came from the cache, as the vendor reports it."""
        return None if self.usage is None else self.usage.cached_tokens

    @property
    def missed(self) -> bool:
        """Whether a large hit was predicted and almost nothing was cached."""
        due, came = self.predicted or 0, self.cached
        return due >= _SUBSTANTIAL and came is not None and came < due * _NEXT_TO_NONE

    @property
    def saved(self) -> float | None:
        """What the cache saved, in tokens at full price; below 0 if writing to it cost more."""
        if self.rule is None or self.usage is None or self.cached is None:
            return None
        return self.rule.tokens_saved(self.cached, self.usage.cache_write_tokens or 0)

    @property
    def money(self) -> float | None:
        """The same in the policy's currency; None if it has no price."""
        return None if self.rule is None or self.saved is None else self.rule.cost(self.saved)


class CacheUsageReport(Struct, frozen=True, kw_only=True):
    """What a conversation's turns got from their vendors' prompt caches. Figures are tokens."""

    turns: int = 0
    """Those that were answered."""
    input_tokens: int = 0
    predicted: int = 0
    cached: int = 0
    written: int = 0
    saved: float = 0.0
    """In tokens at full price."""
    money: Mapping[str, float] = field(default_factory=dict[str, float])
    """The same by currency, for turns whose price is known."""
    broken: int = 0
    """How many requests didn't begin with the one before."""
    missed: int = 0
    """How often a large hit was predicted and almost nothing was cached."""
    last: PrefixReport | None = None
    """The last turn that was answered."""
    next: PrefixReport | None = None
    """The report of a turn if it were sent now."""

    def with_turn(self, report: PrefixReport) -> CacheUsageReport:
        """With one more turn that was answered."""
        usage, money = report.usage or Usage(), dict(self.money)
        if report.rule is not None and report.money is not None:
            currency = report.rule.currency
            money[currency] = money.get(currency, 0.0) + report.money
        return CacheUsageReport(
            turns=self.turns + 1,
            input_tokens=self.input_tokens + (usage.input_tokens or 0),
            predicted=self.predicted + (report.predicted or 0),
            cached=self.cached + (usage.cached_tokens or 0),
            written=self.written + (usage.cache_write_tokens or 0),
            saved=self.saved + (report.saved or 0.0),
            money=money,
            broken=self.broken + (report.cause is not None),
            missed=self.missed + report.missed,
            last=report,
        )


class SentRequest(Struct, frozen=True, kw_only=True):
    """What a request held."""

    backend: object
    head: Mapping[str, bytes]
    """What a cache looks at beside the messages."""
    zones: Zones
    """With the turn's own messages."""
    trailing: tuple[StoredMessage, ...] = ()
    stored: int
    """How many of the incremental records are there for the next request."""
    tokens: int
    """Of all but what was trailing."""
    when: float
    """On the monotonic clock."""
    ends: tuple[int, ...] = ()
    """Counts of records with which a cache entry may end."""

    @property
    def lasting(self) -> int:
        """How many records of the three zones are there for the next request."""
        return len(self.zones.immutable) + len(self.zones.compressed) + self.stored


class SharedPrefix(Struct, frozen=True, kw_only=True):
    """What two requests begin with."""

    records: int = 0
    cause: PrefixChangeCause | None = None
    fields: tuple[str, ...] = ()
    at: int | None = None

    @property
    def lost(self) -> bool:
        """Whether nothing can be found, whatever the messages say."""
        return bool(self.fields) or self.cause is PrefixChangeCause.BACKEND


def compare_requests(
    last: SentRequest, now: SentRequest, rules: Dialect, *, compressed: bool
) -> SharedPrefix:
    """How far `now` repeats `last`; `compressed` says whether a compression came in between."""
    if last.backend is not now.backend:
        return SharedPrefix(cause=PrefixChangeCause.BACKEND)
    if last.head is not now.head and (names := _changed_fields(last.head, now.head)):
        found = min(
            (_CAUSES.get(name, PrefixChangeCause.OPTION) for name in names), key=_ORDER.index
        )
        return SharedPrefix(cause=found, fields=names)
    same = _count_common(last.zones, now.zones)
    grew = same >= last.lasting
    at = _first_difference(last, now, rules, min(same, last.lasting))
    if at is None:
        return SharedPrefix(records=same if grew else min(len(last.zones), len(now.zones)))
    if grew:
        cause = PrefixChangeCause.REPAIR
    elif same < len(last.zones.immutable):
        cause = PrefixChangeCause.SYSTEM
    else:
        cause = PrefixChangeCause.COMPRESSION if compressed else PrefixChangeCause.EDIT
    return SharedPrefix(records=at, cause=cause, at=at)


def _changed_fields(last: Mapping[str, bytes], now: Mapping[str, bytes]) -> tuple[str, ...]:
    names = dict.fromkeys((*last, *now))
    return tuple(name for name in names if last.get(name) != now.get(name))


def _count_common(last: Zones, now: Zones) -> int:
    """How many records both begin with that say the same."""
    count = 0
    for zone in Zone:
        one, two = last.zone(zone), now.zone(zone)
        same = len(one) if one is two else one.common_prefix_length(two)
        count += same
        if not same == len(one) == len(two):
            break
    return count


# What is stored may be equal and yet go out otherwise: a result that comes late takes the place of
# the words that stood for it, and some servers want neighbours of one role as one message. It may
# also differ and yet go out the same: what says nothing is never sent.


def _first_difference(last: SentRequest, now: SentRequest, rules: Dialect, same: int) -> int | None:
    """The first stored message of `last` that goes out otherwise in `now`."""
    passing = chain(last.zones.incremental.tail(last.stored), last.trailing, now.trailing)
    fixed = any(record.role is Role.TOOL for record in passing)
    quiet = same == last.lasting and not (fixed or rules.merge_same_role)
    if quiet and not _answers_earlier(last, now):
        return None
    start = 0 if fixed else _newest_cut(last, now, same)
    old = _stored_pieces(last, start, rules)
    if not old:
        start, old = 0, _stored_pieces(last, 0, rules)
    pairs = zip(old, _pieces(now, start, rules), strict=False)
    equal = sum(1 for _ in takewhile(lambda pair: pair[0][1].body == pair[1][1].body, pairs))
    return None if equal == len(old) else old[equal][0]


def _newest_cut(last: SentRequest, now: SentRequest, same: int) -> int:
    """An index before `same` from which both may be repaired on their own."""
    before = (*last.zones.immutable, *last.zones.compressed)
    if same <= len(before) or any(record.call_ids for record in before):
        return 0
    one, other = legal_cuts(last.zones.incremental), legal_cuts(now.zones.incremental)
    at, level = next(one), next(other)
    while at != level or at >= same - len(before):
        if at >= level:
            at = next(one, 0)
        if level > at:
            level = next(other, 0)
    return len(before) + at


def _answers_earlier(last: SentRequest, now: SentRequest) -> bool:
    """Whether a result was added whose call was there before."""
    called: set[str] = set()
    for record in now.zones.incremental.tail(last.stored):
        if record.role is Role.TOOL and not called.issuperset(record.call_ids):
            return True
        called.update(record.call_ids)
    return False


_Piece = tuple[int, StoredMessage, bool]
"""The index of a record, what goes out for it, and whether only the repair said so."""


def _pieces(sent: SentRequest, start: int, rules: Dialect) -> list[_Piece]:
    """What goes out of the records from `start` on."""
    legal = repair_slice([*_records_from(sent.zones, start), *sent.trailing], rules)
    made = {note.id for note in legal.notes if note.what is RepairKind.ADDED}
    return [
        (start + source, record, record.id in made)
        for source, record in zip(legal.sources, legal.records, strict=True)
    ]


def _stored_pieces(sent: SentRequest, start: int, rules: Dialect) -> list[_Piece]:
    """The same up to the last stored message."""
    pieces = _pieces(sent, start, rules)
    # A result stands at its call's index, so an index alone doesn't say who was only passing.
    passing = {r.id for r in chain(sent.zones.incremental.tail(sent.stored), sent.trailing)}
    while pieces and _is_passing(pieces[-1], sent.lasting, passing):
        pieces.pop()
    return pieces


def _is_passing(piece: _Piece, lasting: int, passing: set[str]) -> bool:
    index, record, made = piece
    return made or index >= lasting or record.id in passing


def _records_from(zones: Zones, start: int) -> Iterator[StoredMessage]:
    before = len(zones.immutable) + len(zones.compressed)
    if start >= before:
        return iter(zones.incremental.tail(start - before))
    return iter(list(zones)[start:])


def predict_cache_use(
    last: SentRequest | None,
    now: SentRequest,
    shared: SharedPrefix,
    *,
    total: int,
    rule: CachePolicy | None,
    weigh: Callable[[int], int],
) -> PrefixReport:
    """What the vendor's rule makes of it. `weigh` gives the tokens of so many first records."""
    if last is None:
        return PrefixReport(total=total, rule=rule, predicted=None if rule is None else 0)

    def tokens(records: int) -> int:
        if shared.lost:
            return 0
        return last.tokens if records == len(last.zones) else min(weigh(records), last.tokens)

    predicted = None
    if rule is not None:
        found = (
            0
            if _has_expired(rule, now.when - last.when)
            else _cached_records(last, shared.records, rule)
        )
        predicted = rule.round_to_cached(tokens(found)) if found else 0
    return PrefixReport(
        cause=shared.cause,
        fields=shared.fields,
        at=shared.at,
        total=total,
        before=last.tokens,
        shared=tokens(shared.records),
        predicted=predicted,
        rule=rule,
    )


def _has_expired(rule: CachePolicy, seconds: float) -> bool:
    return rule.ttl is not None and seconds > rule.ttl


def _cached_records(last: SentRequest, records: int, rule: CachePolicy) -> int:
    """How many records' worth is in the cache."""
    if rule.match_policy == "beginning":
        return records
    return max((end for end in last.ends if end <= records), default=0)


def cache_entry_ends(
    last: SentRequest | None,
    zones: Zones,
    trailing: Sized,
    shared: SharedPrefix,
    rule: CachePolicy | None,
) -> tuple[int, ...]:
    """Where entries of the cache end once a request with these zones has been answered."""
    if rule is None or rule.match_policy == "beginning":
        return ()
    before = () if last is None or shared.lost else last.ends
    ends = {end for end in before if end <= shared.records}
    if rule.match_policy == "breakpoints":
        ends.add(_last_breakpoint(zones))
    else:
        ends.add(shared.records)
        ends.add(0 if trailing else len(zones))
    return tuple(sorted(ends - {0}))[-_MOST_ENDS:]


def _last_breakpoint(zones: Zones) -> int:
    """How many records there are up to the last of the user or a tool."""
    count = len(zones)
    for vector in (zones.incremental, zones.compressed, zones.immutable):
        for record in reversed(vector):
            if record.role in {Role.USER, Role.TOOL}:
                return count
            count -= 1
    return count
