"""What is shared with the last request, what a rule makes of it, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agent_context._context.persistent_vector import PersistentVector
from agent_context._context.stored_message import StoredMessage
from agent_context._context.zones import Zones
from agent_context.messages import Usage
from agent_context.models import CachePolicy
from agent_context.prompt_cache import (
    CacheUsageReport,
    PrefixChangeCause,
    PrefixReport,
    SentRequest,
    SharedPrefix,
    cache_entry_ends,
    compare_requests,
    predict_cache_use,
)
from agent_context.wire.repair import STRICTEST_DIALECT
from tests.histories import ZHIPU, asking, result, said, user

HEAD: Mapping[str, bytes] = {"model": b'"m"', "tools": b"[]"}
SERVER = object()
ONES = [user("1"), said("2"), user("3")]
RULE = CachePolicy(ratio=0.1)


def sent(*records: StoredMessage, **others: Any) -> SentRequest:
    zones = Zones(incremental=PersistentVector.of(records))
    usual: dict[str, Any] = {"backend": SERVER, "head": HEAD, "zones": zones, "when": 0.0}
    usual |= {"stored": len(records), "tokens": 1_000 * len(records)}
    return SentRequest(**usual | others)


def shared(last: SentRequest, now: SentRequest, **how: Any) -> SharedPrefix:
    return compare_requests(
        last, now, how.pop("rules", STRICTEST_DIALECT), compressed=how.pop("compressed", False)
    )


def outlook(
    last: SentRequest | None, now: SentRequest, rule: CachePolicy | None = RULE
) -> PrefixReport:
    return followed(last, now, rule)[1]


def followed(
    last: SentRequest | None, now: SentRequest, rule: CachePolicy | None
) -> tuple[SentRequest, PrefixReport]:
    both = SharedPrefix() if last is None else shared(last, now)
    report = predict_cache_use(
        last, now, both, total=now.tokens + 7, rule=rule, weigh=lambda count: count * 1_000
    )
    ends = cache_entry_ends(last, now.zones, now.trailing, both, rule)
    return msgspec.structs.replace(now, ends=ends), report


# What is shared


def test_what_only_grew_is_shared() -> None:
    assert shared(sent(*ONES), sent(*ONES, said("4"), user("5"))) == SharedPrefix(records=3)


def test_scratch_breaks_nothing() -> None:
    last = sent(*ONES, trailing=(user("12:00"),))

    assert shared(last, sent(*ONES, said("4"), trailing=(user("12:01"),))).cause is None


def test_equal_words_are_shared_under_any_id() -> None:
    again = sent(*(user("1"), said("2"), user("3")))

    assert shared(sent(*ONES), again) == SharedPrefix(records=3)


def test_what_a_failed_turn_said_is_not_missed() -> None:
    last = sent(*ONES, stored=2)

    assert shared(last, sent(*ONES[:2], user("else"))) == SharedPrefix(records=2)


@pytest.mark.parametrize(
    ("now", "at"),
    [
        ([user("1"), said("2!"), user("3"), said("4")], 1),
        ([user("1"), said("2")], 2),
        ([user("0"), *ONES], 0),
        ([], 0),
    ],
)
def test_an_edit_breaks_it_where_it_was_made(now: list[StoredMessage], at: int) -> None:
    assert shared(sent(*ONES), sent(*now)) == SharedPrefix(
        records=at, cause=PrefixChangeCause.EDIT, at=at
    )


def test_a_compression_is_named() -> None:
    summary = Zones(
        compressed=PersistentVector.of([said("so far")]), incremental=PersistentVector.of(ONES[2:])
    )

    both = shared(sent(*ONES), sent(zones=summary, stored=1), compressed=True)

    assert both == SharedPrefix(records=0, cause=PrefixChangeCause.COMPRESSION, at=0)


def test_another_immutable_zone_is_named() -> None:
    def started(text: str) -> SentRequest:
        return sent(
            zones=Zones(PersistentVector.of([user(text)]), incremental=PersistentVector.of(ONES)),
            stored=3,
        )

    assert shared(started("a"), started("b")).cause is PrefixChangeCause.SYSTEM


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"model": b'"n"'}, PrefixChangeCause.MODEL),
        ({"tools": b"[{}]"}, PrefixChangeCause.TOOLS),
        ({"tool_choice": b'"none"'}, PrefixChangeCause.TOOL_CHOICE),
        ({"thinking": b"{}"}, PrefixChangeCause.THINKING),
        ({"reasoning_effort": b'"high"'}, PrefixChangeCause.EFFORT),
        ({"effort": b'"high"'}, PrefixChangeCause.EFFORT),
        ({"response_format": b"{}"}, PrefixChangeCause.RESPONSE_FORMAT),
        ({"user_id": b'"u"'}, PrefixChangeCause.CACHE_KEY),
        ({"prompt_cache_key": b'"k"'}, PrefixChangeCause.CACHE_KEY),
        ({"service_tier": b'"flex"'}, PrefixChangeCause.OPTION),
    ],
)
def test_a_changed_field_is_named(change: Mapping[str, bytes], cause: PrefixChangeCause) -> None:
    both = shared(sent(*ONES), sent(*ONES, head={**HEAD, **change}))

    assert both == SharedPrefix(cause=cause, fields=tuple(change))


def test_of_many_changed_fields_the_weightiest_is_the_cause() -> None:
    head = {"user_id": b"1", "model": b'"n"', "tools": b"[1]"}

    both = shared(sent(*ONES), sent(*ONES, head=head))

    assert both.cause is PrefixChangeCause.MODEL
    assert set(both.fields) == {"user_id", "model", "tools"}


def test_another_backend_is_named() -> None:
    assert shared(sent(*ONES), sent(*ONES, backend=object())).cause is PrefixChangeCause.BACKEND


def test_a_late_result_changes_what_was_sent_for_it() -> None:
    last = sent(user("1"), asking("a"), user("3"))

    both = shared(last, sent(user("1"), asking("a"), user("3"), result("a")))

    assert both == SharedPrefix(records=1, cause=PrefixChangeCause.REPAIR, at=1)


def test_a_result_in_time_changes_nothing() -> None:
    assert shared(sent(*ONES), sent(*ONES, asking("a"), result("a"))).cause is None
    assert shared(sent(user("1"), asking("a")), sent(user("1"), asking("a"), result("a"))) == (
        SharedPrefix(records=2)
    )


def test_neighbours_of_one_role_are_one_message_for_some() -> None:
    last, now = sent(*ONES), sent(*ONES, user("4"))

    assert shared(last, now).cause is None
    assert shared(last, now, rules=ZHIPU) == SharedPrefix(
        records=2, cause=PrefixChangeCause.REPAIR, at=2
    )


def test_what_is_never_sent_may_go() -> None:
    assert shared(sent(user(" "), *ONES), sent(*ONES, said("4"))).cause is None


# What a rule makes of it


def test_a_first_request_finds_nothing() -> None:
    report = outlook(None, sent(*ONES))

    assert (report.cause, report.before, report.shared, report.predicted) == (None, 0, 0, 0)


def test_without_a_rule_nothing_is_foretold() -> None:
    assert outlook(None, sent(*ONES), None).predicted is None
    report = outlook(sent(*ONES), sent(*ONES), None)
    assert (report.shared, report.predicted, report.saved, report.money) == (
        3_000,
        None,
        None,
        None,
    )


def test_a_prefix_that_held_is_found_in_whole_steps_from_a_least_size_on() -> None:
    last, now = sent(*ONES), sent(*ONES, said("4"))

    assert outlook(last, now).predicted == 3_000
    assert outlook(last, now, replace(RULE, granularity=128)).predicted == 2_944
    assert outlook(last, now, replace(RULE, min_tokens=3_001)).predicted == 0


def test_of_a_broken_prefix_the_beginning_is_found() -> None:
    report = outlook(sent(*ONES), sent(ONES[0], said("2!")))

    assert (report.cause, report.at, report.before) == (PrefixChangeCause.EDIT, 1, 3_000)
    assert (report.shared, report.predicted) == (1_000, 1_000)


@pytest.mark.parametrize("change", [{"head": {"model": b'"n"'}}, {"backend": object()}])
def test_behind_another_head_nothing_is_found(change: dict[str, Any]) -> None:
    report = outlook(sent(*ONES), sent(*ONES, **change))

    assert (report.shared, report.predicted) == (0, 0)


def test_what_is_too_old_is_not_counted_on() -> None:
    rule = replace(RULE, ttl=60.0)

    assert outlook(sent(*ONES), sent(*ONES, when=59.0), rule).predicted == 3_000
    assert outlook(sent(*ONES), sent(*ONES, when=61.0), rule).predicted == 0


def test_whole_requests_are_found_and_nothing_between() -> None:
    rule = replace(RULE, match_policy="requests")
    first, _ = followed(None, sent(ONES[0]), rule)
    second, grown = followed(first, sent(*ONES), rule)
    _, edited = followed(second, sent(ONES[0], ONES[1], user("3!")), rule)

    assert grown.predicted == 1_000
    assert (edited.shared, edited.predicted) == (2_000, 1_000)


def test_what_two_requests_had_in_common_is_found_by_the_third() -> None:
    rule = replace(RULE, match_policy="requests")

    def clock(time: str) -> dict[str, Any]:
        return {"trailing": (user(time),)}

    first, _ = followed(None, sent(*ONES, **clock("1")), rule)
    second, early = followed(first, sent(*ONES, said("4"), **clock("2")), rule)
    _, late = followed(second, sent(*ONES, said("4"), user("5"), **clock("3")), rule)

    assert (early.cause, early.shared, early.predicted) == (None, 3_000, 0)
    assert (late.shared, late.predicted) == (4_000, 3_000)


def test_breakpoints_stand_at_the_last_message_of_the_user_or_a_tool() -> None:
    rule = replace(RULE, match_policy="breakpoints")
    last, _ = followed(None, sent(*ONES, said("4"), trailing=(said("now"),)), rule)

    report = outlook(last, sent(*ONES, said("4"), user("5")), rule)

    assert (report.shared, report.predicted) == (4_000, 3_000)


# What it saves


def test_the_saving_is_counted_at_full_price() -> None:
    rule = CachePolicy(ratio=0.1, write=1.25, price=2.0)
    usage = Usage(input_tokens=10_000, cached_tokens=8_000, cache_write_tokens=2_000)

    report = PrefixReport(total=10_000, rule=rule, usage=usage)

    assert report.saved == pytest.approx(6_700)
    assert report.money == pytest.approx(0.0134)


def test_writing_may_cost_more_than_it_saves() -> None:
    rule = CachePolicy(ratio=0.1, write=1.25)
    usage = Usage(input_tokens=1_000, cached_tokens=0, cache_write_tokens=1_000)

    report = PrefixReport(total=1_000, rule=rule, usage=usage)

    assert (report.saved, report.money) == (-250.0, None)


@pytest.mark.parametrize(
    ("predicted", "cached", "missed"),
    [
        (5_000, 0, True),
        (5_000, 499, True),
        (5_000, 500, False),
        (999, 0, False),
        (5_000, None, False),
        (None, 0, False),
    ],
)
def test_a_collapse_is_much_due_and_next_to_nothing_come(
    predicted: int | None, cached: int | None, missed: bool
) -> None:
    usage = Usage(input_tokens=6_000, cached_tokens=cached)

    assert PrefixReport(total=1, predicted=predicted, usage=usage).missed is missed


def test_totals_add_up_by_currency() -> None:
    def turn(currency: str, cached: int | None, **others: Any) -> PrefixReport:
        rule = CachePolicy(ratio=0.5, price=1.0, currency=currency)
        usage = Usage(input_tokens=4_000_000, cached_tokens=cached)
        return PrefixReport(total=1, predicted=2_000_000, rule=rule, usage=usage, **others)

    totals = CacheUsageReport()
    for report in (
        turn("USD", 2_000_000),
        turn("USD", 2_000_000, cause=PrefixChangeCause.EDIT),
        turn("CNY", 0),
        turn("CNY", None),
        PrefixReport(total=1),
    ):
        totals = totals.with_turn(report)

    assert (totals.turns, totals.input_tokens) == (5, 16_000_000)
    assert (totals.predicted, totals.cached, totals.saved) == (8_000_000, 4_000_000, 2_000_000.0)
    assert totals.money == {"USD": 2.0, "CNY": 0.0}
    assert (totals.broken, totals.missed) == (1, 1)
    assert totals.last == PrefixReport(total=1)
