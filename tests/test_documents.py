"""The programs of README.md and docs/ run as they stand, and print what the pages say."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

import agent_context
import agent_context_backends
from tests.support.local_model import needs_model
from tests.support.postgres import place

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>\w+)(?:: (?P<file>\S+))? -->\n)?"
    r"```(?P<language>python|text)\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)
MARKS = {
    None: "runs, and prints what follows it",
    "notebook": "the same, for cells, where `await` may stand alone",
    "file": "is that file",
    "output": "is what that file prints",
    "offline": "is what it prints with the embedded model",
}
PACKAGES = [
    Path(p) for package in (agent_context, agent_context_backends) for p in package.__path__
]
SERVER = "postgresql://app@db.internal/agents"
"""The server of the pages; the tests have another."""
IN_PLACE_OF_A_VENDOR = {
    "openai import OpenAIBackend": "local import LocalBackend",
    "import AgentContext, Message\n": "import AgentContext, Message, SendOptions\n",
    "OpenAIBackend(), ": "LocalBackend(), options=SendOptions(temperature=0), ",
}
"""How the README says that a chat goes offline."""
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def blocks(*marks: str | None) -> list[object]:
    """The programs and outputs with one of these marks, each as a test's parameter."""
    return [
        pytest.param(block, id=f"{page.name}:{text[: block.start()].count(chr(10)) + 1}")
        for page in PAGES
        for text in [page.read_text("utf-8")]
        for block in BLOCK.finditer(text)
        if block["mark"] in marks and (block["language"] == "python" or block["mark"])
    ]


def run(code: str) -> None:
    """Run a program, or the cells of a notebook."""
    compiled = compile(code, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, object] = {"__name__": "page"}
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(compiled, names))
    else:
        exec(compiled, names)


def printed(program: str) -> str:
    """What a program of its own process prints."""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True, timeout=280
    )
    return finished.stdout


@cache
def names_of_tests() -> set[str]:
    """The names of all tests, and of those that contract suites hold."""
    suites = Path(agent_context.__path__[0]) / "testing"
    files = [*(ROOT / "tests").rglob("test_*.py"), *suites.glob("*.py")]
    sources = (path.read_text("utf-8") for path in files)
    return {name for source in sources for name in re.findall(r"def (test_\w+)", source)}


@cache
def public_classes() -> dict[str, list[type]]:
    """All classes of the packages, by name."""
    found: dict[str, list[type]] = {}
    for package in (agent_context, agent_context_backends):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith(".__main__"):
                continue
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, type):
                    found.setdefault(name, []).append(value)
    return found


def has(owner: str, name: str) -> bool:
    """Whether a class of that name has the attribute, or a field of that name."""
    classes = public_classes().get(owner, [])
    return any(hasattr(cls, name) or name in fields(cls) for cls in classes)


def fields(cls: type) -> set[str]:
    """What an instance has and its class has not: it is annotated, or given when it is made."""
    annotated = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    return annotated | set(inspect.signature(cls).parameters)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a database with nothing in it."""
    name = f"test_{uuid4().hex[:12]}"
    with psycopg.connect(place(), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield make_conninfo(place(), dbname=name)
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.mark.parametrize("block", blocks(None, "notebook"))
def test_a_program_prints_what_its_page_says(
    block: re.Match[str],
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = block["code"]
    if SERVER in code:
        code = code.replace(SERVER, request.getfixturevalue("database"))

    run(code)

    assert capsys.readouterr().out == (block["output"] or "")


@pytest.mark.parametrize("block", blocks("file"))
def test_a_program_is_the_example_of_that_name(block: re.Match[str]) -> None:
    assert block["code"] == (ROOT / block["file"]).read_text("utf-8")


class TestEmbeddedModel:
    pytestmark: ClassVar = needs_model

    @pytest.mark.parametrize("block", blocks("output"))
    def test_it_says_what_the_page_shows(self, block: re.Match[str]) -> None:
        assert printed((ROOT / block["file"]).read_text("utf-8")) == block["code"]

    @pytest.mark.parametrize("block", blocks("offline"))
    def test_it_can_take_the_place_of_a_vendor(self, block: re.Match[str]) -> None:
        program = (ROOT / block["file"]).read_text("utf-8")
        for old, new in IN_PLACE_OF_A_VENDOR.items():
            assert old in program
            program = program.replace(old, new)

        assert printed(program) == block["code"]


def test_every_mark_means_something() -> None:
    found = {block["mark"] for page in PAGES for block in BLOCK.finditer(page.read_text("utf-8"))}

    assert found <= set(MARKS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_what_is_there(page: Path) -> None:
    linked = LINK.findall(page.read_text("utf-8"))

    assert [target for target in linked if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text("utf-8")))

    assert named - names_of_tests() == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", page.read_text("utf-8")))
    places = [place for package in PACKAGES for place in (package, package.parent)]
    roots = [ROOT, ROOT / "tests/backends", *places]

    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_attribute_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`([A-Z]\w+)\.([a-z]\w+)(?:\(|`)", page.read_text("utf-8")))

    assert [f"{owner}.{name}" for owner, name in sorted(named) if not has(owner, name)] == []


def test_the_readme_is_read_in_ten_minutes() -> None:
    text = (ROOT / "README.md").read_text("utf-8")

    assert len(text.splitlines()) <= 225
    assert len(text.split()) <= 1_500
