"""Long talks in which facts are planted that later questions ask for, made from a fixed seed.

Two people talk about their days in many sessions. Now and then one of them says something of their
own: what somebody bought, where, when, for how much. Questions ask for it in other words than it
was said; every third needs two messages that were said far from each other. A talk of one's own is
read from lines of JSON: `turns` (`id`, `speaker`, `text`) and `questions` (`question`, `evidence`:
the ids of the turns that hold the answer; those of `category` 5 have none and are left out).
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

__all__ = ["LongTalk", "Question", "make_talks", "read_talks"]

_PEOPLE = ("Ada", "Ben", "Carla", "David", "Elin", "Farid", "Greta", "Hugo", "Ines", "Jonas")
_ITEMS = (
    "canoe", "piano", "telescope", "greenhouse", "sewing machine", "motorbike", "beehive", "kiln",
    "accordion", "sledge", "loom", "microscope", "drone", "tent", "espresso machine", "cello",
)  # fmt: skip
_TOWNS = (
    "Porto", "Bergen", "Graz", "Tartu", "Ghent", "Lucca", "Malmö", "Cork", "Split", "Leiden",
    "Aarhus", "Toledo", "Bremen", "Trieste", "Utrecht", "Zadar",
)  # fmt: skip
_JOBS = (
    "dentist", "baker", "pilot", "librarian", "carpenter", "vet", "geologist", "violinist",
    "beekeeper", "welder", "translator", "chemist",
)  # fmt: skip
_SMALL_TALK = (
    "It has been raining since {day} and the garden looks sad.",
    "I slept badly, but the coffee at work helped a lot.",
    "We should really meet more often, don't you think?",
    "The traffic on {day} was terrible, I was late for everything.",
    "I finished the book you told me about and liked the ending.",
    "My neighbours are renovating, so it is loud from {day} on.",
    "Did you watch the match on {day}? What a finish!",
    "I cooked the soup again, this time with far too much pepper.",
    "Work is slow this week, mostly meetings about other meetings.",
    "The cat has learned to open the fridge, nothing is safe now.",
    "I went for a run on {day} and regretted it at once.",
    "Thanks for listening the other day, it did me good.",
    "I am thinking of painting the kitchen, maybe a warm yellow.",
    "The train was empty on {day}, I had a whole carriage.",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Question(Struct, frozen=True):
    """What is asked at the end of a talk, and the numbers of the turns that hold the answer."""

    text: str
    evidence: frozenset[int]


class LongTalk(Struct, frozen=True):
    """What two people said, in turn, and what is asked of it."""

    texts: Sequence[str]
    questions: Sequence[Question]


def make_talks(count: int, turns: int) -> Iterator[LongTalk]:
    """So many talks of so many turns; always the same ones."""
    for number in range(count):
        yield _make_talk(random.Random(number), turns)


def read_talks(path: Path) -> Iterator[LongTalk]:
    """The talks of a file, one JSON object a line; packed with gzip if it is named `.gz`."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    for line in text.decode().splitlines():
        yield _parse_talk(json.loads(line))


def _parse_talk(fields: dict[str, Any]) -> LongTalk:
    numbers = {turn["id"]: number for number, turn in enumerate(fields["turns"])}
    questions = [
        Question(asked["question"], frozenset(numbers[name] for name in asked["evidence"]))
        for asked in fields["questions"]
        if asked.get("category") != 5
        and asked["evidence"]
        and numbers.keys() >= {*asked["evidence"]}
    ]
    texts = [f"{turn['speaker']}: {turn['text']}" for turn in fields["turns"]]
    return LongTalk(texts, questions)


def _make_talk(source: random.Random, turns: int) -> LongTalk:
    speakers = source.sample(_PEOPLE, 2)
    said = [source.choice(_SMALL_TALK).format(day=source.choice(_DAYS)) for _ in range(turns)]
    places = iter(source.sample(range(turns), turns // 4))
    others = [person for person in _PEOPLE if person not in speakers]
    subjects = [(person, item) for person in others for item in _ITEMS]
    source.shuffle(subjects)
    questions: list[Question] = []
    for number, (person, item) in enumerate(subjects[: turns // 10]):
        where, town = next(places), source.choice(_TOWNS)
        price = source.randrange(90, 4_000)
        said[where] = f"My friend {person} bought a {item} in {town}, for {price} euros."
        asked, evidence = source.choice(_SINGLE), frozenset({where})
        if number % 3 == 0:
            further, job = next(places), source.choice(_JOBS)
            said[further] = f"In the end the {item} from {town} went to a {job}, by the way."
            asked, evidence = _DOUBLE, frozenset({where, further})
        questions.append(Question(asked.format(person=person, item=item), evidence))
    return LongTalk([f"{speakers[n % 2]}: {text}" for n, text in enumerate(said)], questions)


_SINGLE = (
    "How much did {person} pay for the {item}?",
    "Where did {person} get the {item} from?",
    "What was the price of {person}'s {item}?",
    "In which town did {person} find that {item}?",
)
_DOUBLE = "Who has the {item} now that {person} once got, and what did it cost?"
