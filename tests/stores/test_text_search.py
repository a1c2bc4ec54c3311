"""How texts are cut into words, ranked, and shown."""

from __future__ import annotations

import threading

import pytest

from agent_context.stores.text_search import TextIndex, find_excerpt, query_words, text_terms


def index_of(*texts: str) -> TextIndex:
    index = TextIndex()
    for text in texts:
        index.add(text)
    return index


def numbers(index: TextIndex, query: str, limit: int = 10) -> list[int]:
    return [number for number, _ in index.search(query, limit)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello", "hello"),
        ("load_config", "load config"),
        ("loadConfig2", "loadconfig2 load config 2"),
        ("a1b2c3d4e5", "a1b2c3d4e5"),
        ("HTTPServer", "httpserver http server"),
        ("parrots called", "parrot call"),
        ("北京大学", "北京 京大 大学 学"),
        ("用Python3写", "用 python3 python 3 写"),
        ("ทดสอบ", "ทด ดส สอ อบ บ"),
        ("книгами книга", "книг книг"),
    ],
)
def test_words_are_cut_for_the_index(text: str, expected: str) -> None:
    assert text_terms(text) == expected.split()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Red, red load_config 你好! \ud800", ["red", "load", "config", "你好"]),
        ("What is the name of the parrots?", ["name", "parrot"]),
        ("Wo ist das Haus", ["wo", "haus"]),
        ("what is the", ["what", "is", "the"]),
        ("?!", []),
    ],
)
def test_a_query_asks_for_each_word_once_and_for_none_that_says_nothing(
    query: str, expected: list[str]
) -> None:
    assert query_words(query) == expected


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    index = index_of(
        *("cat", "x", "x", "cat", "y", "y", "cat dog", "z", "z", "cat", "w", "w", "dog"),
        *("v", "v", "cat fish"),
    )

    assert numbers(index, "cat fish dog")[:2] == [15, 6]


def test_a_short_text_is_better_than_a_long_one() -> None:
    index = index_of("parrot " + "many other words " * 30, "", "", "the parrot")

    assert numbers(index, "parrot") == [3, 0]


def test_of_equals_the_newest_comes_first() -> None:
    assert numbers(index_of("same", "", "", "same", "", "", "same"), "same") == [6, 3, 0]


def test_neighbours_that_are_found_share_their_score() -> None:
    index = index_of("parrot", "", "", "parrot", "parrot name", "", "", "parrot")

    assert numbers(index, "parrot name")[:2] == [4, 3]


def test_forms_of_a_word_are_found() -> None:
    index = index_of("She was adopting dogs", "", "running late")

    assert numbers(index, "adopted dog") == [0]
    assert numbers(index, "run") == [2]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("北京", [0]),
        ("大学", [0]),
        ("タワ", [1]),
        ("서울", [2]),
        ("南京", []),
        ("学", [0]),
        ("北", [0]),
    ],
)
def test_words_without_spaces_are_found_by_pairs(query: str, expected: list[int]) -> None:
    index = index_of("我昨天去了北京大学", "東京タワー", "서울에서")

    assert numbers(index, query) == expected


def test_a_word_that_is_not_there_is_found_by_what_begins_so() -> None:
    index = index_of("a refrigerator", "", "a fridge")

    assert numbers(index, "refrig") == [0]
    assert numbers(index, "xylo") == []


def test_what_was_removed_is_found_no_more() -> None:
    index = index_of("one parrot", "two parrots")
    index.remove(1)
    index.remove(1)

    assert numbers(index, "parrot") == [0]
    assert len(index) == 1


def test_only_what_is_accepted_counts() -> None:
    index = index_of("parrot", "parrot", "parrot")

    assert [n for n, _ in index.search("parrot", 2, lambda number: number < 2)] == [1, 0]
    assert index.search("parrot", 0) == []


def test_threads_may_use_an_index_at_once() -> None:
    index, failures = TextIndex(), list[BaseException]()

    def work(name: int) -> None:
        try:
            for number in range(200):
                index.add(f"thread{name} adds parrots {number}")
                index.search("parrot adding", 5)
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert len(index) == 800
    assert len(numbers(index, "parrot", 1000)) == 800


def test_an_excerpt_shows_most_of_the_words() -> None:
    text = "parrot " + "x " * 3000 + "the parrot is called Polly " + "y " * 3000
    start, end = find_excerpt(text, "What is the parrot called?", 1000)

    assert end - start == 1000
    assert "parrot is called Polly" in text[start:end]


def test_a_short_text_is_shown_whole() -> None:
    assert find_excerpt("short", "x", 100) == (0, 5)
    assert find_excerpt("y " * 100, "x", 100) == (0, 100)
