"""What of an entry can be searched for, and what a query asks for."""

from __future__ import annotations

import pytest

from agent_context.stores.sqlite.full_text import _cut
from agent_context.stores.text_search import extract_text, query_words, rank_entries
from tests.stores.material import entry


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"content": "hello"}', "hello"),
        (b'{"id": "m1", "role": "user", "message": {"content": ["a", {"text": "b"}]}}', "a\nb"),
        (b'{"n": 1, "none": null, "list": []}', ""),
        (b'{"content": "\\ud800 lone"}', "? lone"),
        (b"no json", ""),
        (b"\xff", ""),
    ],
)
def test_the_text_of_a_payload(payload: bytes, expected: str) -> None:
    assert extract_text(payload) == expected


def test_a_query_asks_for_each_word_once() -> None:
    assert query_words("Red, red load_config 你好! \ud800") == ["red", "load_config", "你好"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", "hello"),
        ("load_config", "load config"),
        ("loadConfig2", "loadconfig2 load config 2"),
        ("HTTPServer", "httpserver http server"),
        ("北京大学", "北京 京大 大学 学"),
        ("用Python3写", "用 python3 python 3 写"),
        ("ทดสอบ", "ทด ดส สอ อบ บ"),
    ],
)
def test_words_are_cut_for_the_index(text: str, expected: str) -> None:
    assert list(_cut(text)) == expected.split()


def test_entries_with_more_of_the_words_come_first_and_then_newer_ones() -> None:
    entries = [entry(1, "red"), entry(2, "red car"), entry(3, "car"), entry(4, "none")]

    assert [each.seq for each in rank_entries(entries, "red CAR", limit=10)] == [2, 3, 1]
    assert [each.seq for each in rank_entries(entries, "red car", limit=1)] == [2]
