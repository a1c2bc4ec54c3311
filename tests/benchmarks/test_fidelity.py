"""The yardstick measures what it says: evidence in the request, and what it costs."""

from __future__ import annotations

import json
from pathlib import Path

from agent_context import TokenBudget
from agent_context.compression import default_strategy
from benchmarks.fidelity import measure
from benchmarks.long_talks import make_talks, read_talks


def test_talks_are_the_same_each_time_and_hold_their_evidence() -> None:
    (one,), (other,) = (list(make_talks(1, 100)) for _ in range(2))

    assert one == other
    assert len(one.questions) == 10
    assert all(number < 100 for question in one.questions for number in question.evidence)


def test_recall_reaches_more_than_the_newest_messages_and_costs_more() -> None:
    talks = list(make_talks(1, 200))

    newest = measure(talks, 0.1, TokenBudget())
    recalled = measure(talks, 0.1, default_strategy())

    assert newest.reached < 0.2
    assert recalled.reached > 0.6
    assert newest.cost < recalled.cost <= recalled.tokens


def test_a_file_of_talks_is_read(tmp_path: Path) -> None:
    turns = [{"id": f"t{n}", "speaker": "Ann", "text": f"Text {n}."} for n in range(3)]
    asked = [
        {"question": "Which text?", "evidence": ["t1", "t2"], "category": 1},
        {"question": "Why?", "evidence": [], "category": 5},
    ]
    path = tmp_path / "talks.jsonl"
    path.write_text(json.dumps({"turns": turns, "questions": asked}))

    (talk,) = read_talks(path)

    assert talk.texts[0] == "Ann: Text 0."
    assert [question.evidence for question in talk.questions] == [{1, 2}]
