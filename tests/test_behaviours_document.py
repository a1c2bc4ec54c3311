"""docs/behaviours.md has a row for each behaviour, and each row names tests that show it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
ALL = range(1, 107)


def rows() -> dict[int, set[str]]:
    text = (ROOT / "docs/behaviours.md").read_text("utf-8")
    return {
        int(number): set(re.findall(r"`(test_\w+)`", cell)) for number, cell in ROW.findall(text)
    }


def marked(path: Path) -> Iterator[tuple[int, str]]:
    """Numbers of behaviours and the tests that are marked with them."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            if found := re.fullmatch(r"pytest\.mark\.behaviour\((\d+)\)", ast.unparse(decorator)):
                yield int(found[1]), node.name


def test_every_behaviour_has_a_row_with_the_tests_that_are_marked_with_its_number() -> None:
    shown: defaultdict[int, set[str]] = defaultdict(set)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for number, name in marked(path):
            shown[number].add(name)

    assert sorted(rows()) == list(ALL)
    assert {
        number: rows()[number] ^ shown[number] for number in ALL if rows()[number] != shown[number]
    } == {}
    assert [number for number in ALL if not shown[number]] == []
