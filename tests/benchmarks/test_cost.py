"""The yardstick of costs: rules of caches applied to requests, and talks held again."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.cost import Cache, measure, measure_way
from benchmarks.tool_talks import join_tool_talks, make_tool_talks, read_tool_talks, tools_of

LONG = b"x" * 8_000
"""2,000 tokens."""


def test_the_rule_of_blocks_finds_whole_requests_and_what_two_had_in_common() -> None:
    cache = Cache("blocks")

    assert cache.read([LONG, b"a" * 400]) == 0
    assert cache.read([LONG, b"b" * 400]) == 0
    assert cache.read([LONG, b"c" * 400]) == 1_984
    assert cache.read([LONG, b"a" * 400, b"d"]) == 2_048


def test_the_rule_of_beginnings_finds_any_beginning() -> None:
    cache = Cache("beginning")

    assert cache.read([LONG, b"a"]) == 0
    assert cache.read([LONG, b"b"]) == 1_920
    assert cache.read([b"short"]) == 0


def test_a_talk_that_never_fills_its_window_breaks_no_prefix() -> None:
    (talk,) = make_tool_talks(1, questions=4)

    costs = measure([talk], "blocks", 1_000_000)

    assert costs.answers == sum(message["role"] == "assistant" for message in talk)
    assert (costs.compressions, costs.breaks) == (0, 0)
    assert costs.share > 0.85


def test_a_compression_breaks_the_prefix_once_and_asks_for_one_summary_at_most() -> None:
    talks = list(make_tool_talks(2))

    costs = measure(talks, "blocks", 12_000)

    assert costs.compressions >= 2
    assert costs.breaks == costs.compressions
    assert costs.summaries <= costs.compressions


def test_what_slides_with_each_request_costs_more() -> None:
    (talk,) = make_tool_talks(1)

    slid = measure_way([talk], "beginning", lambda said, _: [said[0], *said[1:][-24:]])

    assert measure([talk], "beginning", 12_000).an_answer < slid.an_answer


def test_talks_are_read_as_far_as_they_were_answered_and_joined(tmp_path: Path) -> None:
    (talk,) = make_tool_talks(1, questions=2)
    path = tmp_path / "talks.jsonl"
    asked = {"role": "user", "content": "And?"}
    path.write_text("\n".join(json.dumps({"messages": [*talk, asked]}) for _ in range(3)))

    talks = list(read_tool_talks(path))
    long, rest = join_tool_talks(talks, 2)

    assert talks == [talk] * 3
    assert (len(long), len(rest)) == (2 * len(talk) - 1, len(talk))
    assert [tool["name"] for tool in tools_of(talk)][:2] == ["get_article", "get_order"]
