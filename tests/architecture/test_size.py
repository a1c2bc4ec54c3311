"""The budget for the tail: no long file, no long function, few ignored complaints."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import agent_context
import agent_context_backends

# From where they are installed: a path from this file would find nothing to count in a wheel.
SOURCES = sorted(
    path
    for package in (agent_context, agent_context_backends)
    for folder in package.__path__
    for path in Path(folder).rglob("*.py")
)
TESTS = sorted(Path(__file__).parents[1].rglob("*.py"))
IGNORE = re.compile(r"#\s*(?:type|pyright):\s*ignore(?P<codes>\[[\w, -]+\])?")

LINES_OF_A_FILE = 600
LINES_OF_A_FUNCTION = 50
IGNORES = 10


def place(path: Path, line: int) -> str:
    return f"{path.parent.name}/{path.name}:{line}"


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield f"{place(path, node.lineno)} {node.name}", last - node.lineno + 1


def ignores(path: Path) -> Iterator[tuple[str, str | None]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT and (found := IGNORE.search(token.string)):
                yield place(path, token.start[0]), found["codes"]


def test_there_is_something_to_count() -> None:
    packages = {path.parent.name for path in SOURCES}

    assert {"agent_context", "agent_context_backends"} <= packages


def test_no_file_is_too_long() -> None:
    lines = {path: len(path.read_bytes().splitlines()) for path in SOURCES}

    assert {path: n for path, n in lines.items() if n > LINES_OF_A_FILE} == {}


def test_no_function_is_too_long() -> None:
    long = [
        (function, lines)
        for path in SOURCES
        for function, lines in functions(path)
        if lines > LINES_OF_A_FUNCTION
    ]

    assert long == []


def test_every_ignore_names_its_code() -> None:
    found = [pair for path in SOURCES + TESTS for pair in ignores(path)]

    assert [where for where, codes in found if codes is None] == []


def test_ignores_are_few() -> None:
    found = [where for path in SOURCES for where, _ in ignores(path)]

    assert len(found) <= IGNORES, found
