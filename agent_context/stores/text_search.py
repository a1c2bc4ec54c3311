"""Finding texts by words: one ranking for every store, and for conversations without one.

Texts are cut into words, identifiers also into their parts, words into stems; scripts that put no
spaces between words are cut into pairs of neighbours. BM25 ranks them: a rare word counts more than
a common one, and more in a short text. Words that say nothing (`the`, `und`) are looked for only
where a query has no others.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from heapq import nlargest
from importlib import import_module
from importlib.resources import files
from itertools import pairwise
from operator import itemgetter
from threading import Lock
from typing import Any, Final, cast

__all__ = ["TextIndex", "find_excerpt", "query_words", "text_terms"]

_WORD: Final = re.compile(r"[^\W_]+")
_PART: Final = re.compile(r"[^\W\d_a-z]+(?![a-z])|[^\W\d_a-z]?[a-z]+|\d+|[^\W_]")

# Scripts that put no spaces between words: Thai to Khmer, kana, ideographs, Hangul.
_UNSPACED: Final = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)

_MOST: Final = 64
"""Words of a query that are looked for."""
_LONGEST: Final = 64
"""Characters of a word that count."""
_PART_LENGTH: Final = 2.5
"""Characters that the parts of an identifier have at least, on average."""
_BEGINNINGS: Final = 200
"""Words that begin as a word of the query does and stand for it, where it isn't there itself."""

_K1: Final = 1.2
_B: Final = 0.75
_NEIGHBOURS: Final = (0.5, 0.25)
"""Which share of its score a text lends to each of those next to it, and next to those, if they are
found at all."""
_STEPS: Final = tuple(
    (step, share) for distance, share in enumerate(_NEIGHBOURS, 1) for step in (-distance, distance)
)
_BEGUN: Final = 0.5
"""What a word counts that only begins as the query's does."""
_COUNT: Final = (1 << 16) - 1

_STEMMERS: Final = (
    ("english", re.compile(r"[a-z\u00c0-\u024f]{3,}")),
    ("russian", re.compile(r"[\u0400-\u04ff]{3,}")),
    ("greek", re.compile(r"[\u0370-\u03ff]{3,}")),
    ("arabic", re.compile(r"[\u0600-\u06ff]{3,}")),
)
"""Whose rules a word's ending follows, by its script."""
_stemming = Lock()


def text_terms(text: str) -> list[str]:
    """What a text is found by: stems in lower case, in order."""
    return [term for word in _WORD.findall(text) for term in _terms(word)]


def query_words(text: str) -> list[str]:
    """The terms that a query asks for, each once; stop words only if there are no others."""
    found = dict.fromkeys(
        term for word in _WORD.findall(text) for term in _terms(word, is_query=True)
    )
    stop_words = _stop_words()
    return [term for term in found if term not in stop_words][:_MOST] or list(found)[:_MOST]


class TextIndex:
    """Texts by their words, numbered from 0 in the order in which they were added.

    Any thread may use it. A text of any length counts; neighbours in number share their score.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._postings: dict[str, array[int]] = {}
        """Of each term where it is: a text's number and how often, 16 bits, in one integer."""
        self._lengths = array("I")
        self._removed: set[int] = set()
        self._total = 0

    def __len__(self) -> int:
        return len(self._lengths) - len(self._removed)

    @property
    def size(self) -> int:
        """About how many terms of texts it holds: each takes some 10 bytes."""
        return self._total

    def add(self, text: str) -> int:
        """Add a text; its number."""
        counts, stop_words = Counter(text_terms(text)), _stop_words()
        length = sum(times for term, times in counts.items() if term not in stop_words)
        with self._lock:
            number = len(self._lengths)
            for term, times in counts.items():
                postings = self._postings.get(term)
                if postings is None:
                    postings = self._postings[term] = array("Q")
                postings.append(number << 16 | min(times, _COUNT))
            self._lengths.append(length)
            self._total += length
        return number

    def remove(self, number: int) -> None:
        """Never find this text again."""
        with self._lock:
            if number not in self._removed:
                self._removed.add(number)
                self._total -= self._lengths[number]

    def search(
        self, text: str, limit: int, accept: Callable[[int], bool] | None = None
    ) -> list[tuple[int, float]]:
        """Numbers of texts with words of `text` and their scores, best first, of equals the newest.

        `accept` says which numbers count.
        """
        words = query_words(text)
        if not words or limit < 1:
            return []
        with self._lock:
            scores = self._score(words)
        considered = 100 + 4 * limit  # the rest can't come so far, whoever their neighbours are
        while True:
            best = {number for number, _ in nlargest(considered, scores.items(), itemgetter(1, 0))}
            reach = range(-len(_NEIGHBOURS), len(_NEIGHBOURS) + 1)
            lifted = {number + step for number in best for step in reach} & scores.keys()
            found = [
                (number, scores[number] + self._beside(number, scores))
                for number in best | lifted
                if number not in self._removed and (accept is None or accept(number))
            ]
            if len(found) >= limit or considered >= len(scores):
                return sorted(found, key=itemgetter(1, 0), reverse=True)[:limit]
            considered *= 4

    def _beside(self, number: int, scores: dict[int, float]) -> float:
        """What a text's neighbours lend it."""
        lent, get, removed = 0.0, scores.get, self._removed
        for step, share in _STEPS:
            if (score := get(number + step)) is not None and number + step not in removed:
                lent += share * score
        return lent

    def best_score(self, text: str) -> float:
        """More than what any text reaches by itself: every word of `text` in it, often."""
        with self._lock:
            return sum(gain for _, gain in self._weigh(query_words(text)))

    def _score(self, words: list[str]) -> dict[int, float]:
        scores: dict[int, float] = {}
        lengths = self._lengths
        base, step = _K1 * (1 - _B), _K1 * _B * len(self) / max(self._total, 1)
        get = scores.get
        for places, factor in self._weigh(words):
            for place in places:
                number, times = place >> 16, place & _COUNT
                gain = factor * times / (times + base + step * lengths[number])
                scores[number] = get(number, 0.0) + gain
        return scores

    def _weigh(self, words: list[str]) -> Iterator[tuple[Sequence[int], float]]:
        """Where each word is, and the most that it adds to a score: the rarer, the more."""
        texts = len(self)
        for places, weight in self._matches(words) if texts else ():
            idf = math.log(1 + max(texts - len(places) + 0.5, 0.5) / (len(places) + 0.5))
            yield places, weight * idf * (_K1 + 1)

    def _matches(self, words: list[str]) -> Iterator[tuple[Sequence[int], float]]:
        """Where each word is, and what it counts; one that isn't there by what begins so."""
        missing: list[str] = []
        for word in words:
            if (places := self._postings.get(word)) is not None:
                yield cast("Sequence[int]", places), 1.0
            if (places is None and len(word) > 2) or (len(word) == 1 and _UNSPACED.match(word)):
                missing.append(word)
        if not missing:
            return
        beginnings = tuple(missing)
        begun = [term for term in self._postings if term.startswith(beginnings)]
        for word in missing:
            others = [term for term in begun if term != word and term.startswith(word)]
            if others:
                yield self._merge(others[:_BEGINNINGS]), _BEGUN

    def _merge(self, terms: list[str]) -> list[int]:
        counts: Counter[int] = Counter()
        for term in terms:
            for place in self._postings[term]:
                counts[place >> 16] += place & _COUNT
        return [number << 16 | min(times, _COUNT) for number, times in counts.items()]


def find_excerpt(text: str, query: str, length: int) -> tuple[int, int]:
    """Where to cut a long text so that `length` characters show most of a query's words."""
    if len(text) <= length:
        return 0, len(text)
    wanted = set(query_words(query))
    hits = [
        (found.start(), terms)
        for found in _WORD.finditer(text)
        if (terms := wanted.intersection(_terms(found[0])) | _begun(found[0], wanted))
    ]
    first = _densest(hits, length - length // 4)
    start = max(0, min(first - length // 4, len(text) - length))
    return start, start + length


def _begun(word: str, wanted: set[str]) -> set[str]:
    lower = word.lower()
    return {term for term in wanted if len(term) > 2 and lower.startswith(term)}


def _densest(hits: list[tuple[int, set[str]]], width: int) -> int:
    """The place of the first hit of the window with most of the words, each counted once."""
    best = (0, 0, hits[0][0] if hits else 0)
    places = [place for place, _ in hits]
    counts: Counter[str] = Counter()
    end = 0
    for start, (place, terms) in enumerate(hits):
        stop = bisect_left(places, place + width)
        for _, added in hits[end:stop]:
            counts.update(added)
        end = stop
        reached = (len(+counts), end - start, -place)
        if reached > (best[0], best[1], -best[2]):
            best = (reached[0], reached[1], place)
        counts.subtract(terms)
    return best[2]


@lru_cache(maxsize=1 << 16)
def _terms(word: str, *, is_query: bool = False) -> tuple[str, ...]:
    """The terms of a word without spaces in it."""
    found: list[str] = []
    for is_unspaced, piece in _stretches(word[: _LONGEST * 4]):
        if not is_unspaced:
            found.append(_stem(piece.lower()[:_LONGEST]))
            parts = _PART.findall(piece)
            # The parts of a hash say nothing, and would be everywhere.
            if 1 < len(parts) <= len(piece) / _PART_LENGTH:
                found += (_stem(part.lower()) for part in parts)
        elif is_query and len(piece) > 1:
            found += map("".join, pairwise(piece))
        else:  # the last one alone, so that it is found too
            found += (piece[start : start + 2] for start in range(len(piece)))
    return tuple(found)


def _stretches(word: str) -> Iterator[tuple[bool, str]]:
    """The word in stretches, each with whether its script has no spaces."""
    end = 0
    for found in _UNSPACED.finditer(word):
        if found.start() > end:
            yield False, word[end : found.start()]
        yield True, found[0]
        end = found.end()
    if end < len(word):
        yield False, word[end:]


def _stem(word: str) -> str:
    if word in _stop_words():
        return word
    for language, letters in _STEMMERS:
        if letters.fullmatch(word):
            with _stemming:  # a stemmer keeps the word that it works on
                return str(_stemmer(language).stemWord(word))
    return word


@cache
def _stop_words() -> frozenset[str]:
    text = files("agent_context.stores").joinpath("stop_words.txt").read_text("utf-8")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(word for line in lines for word in line.split())


@cache
def _stemmer(language: str) -> Any:  # noqa: ANN401 - of a library without types
    library: Any = import_module("snowballstemmer")  # only whoever searches needs it
    return library.stemmer(language)
