"""The README's programs run as they stand and print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.local_model import needs_model

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>\w+): (?P<file>\S+) -->\n)?"
    r"```python\n(?P<code>.*?)```\n(?:```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)
BLOCKS = list(BLOCK.finditer(README))
ALONE = [block for block in BLOCKS if block["mark"] is None]
ID = re.compile(r'"id":"[^"]+"')


def test_there_are_programs_to_run() -> None:
    assert len(ALONE) >= 8
    assert sum(block["output"] is not None for block in ALONE) >= 6


@pytest.mark.parametrize(
    "block", ALONE, ids=[f"line {README[: b.start()].count(chr(10)) + 1}" for b in ALONE]
)
def test_a_program_prints_what_the_readme_says(
    block: re.Match[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block["code"], "README.md", "exec"), {"__name__": "readme"})

    assert capsys.readouterr().out == (block["output"] or "")


def test_the_first_program_is_the_example_of_that_name() -> None:
    (block,) = [block for block in BLOCKS if block["mark"] == "file"]

    assert block["code"] == (ROOT / block["file"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_model, id="local model")])
def test_the_first_program_compresses_and_remembers(_: None) -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "docs/examples/small_window.py"],
        capture_output=True,
        check=True,
        text=True,
        timeout=280,
    ).stdout
    shown = re.search(r"<!-- output: .*? -->\n```text\n(.*?)```", README, re.DOTALL)

    assert shown is not None
    assert "[4 messages became one summary]" in printed
    answer = printed.split("What is Mia allergic to?\n")[1].splitlines()[0]
    assert "peanuts" in answer
    assert _shape(printed) == _shape(shown[1])


def _shape(printed: str) -> list[str]:
    """The lines without what a model or chance decides."""
    lines = ID.sub('"id":"…"', printed).splitlines()
    return [line.split(' "content"')[0].split(',"content"')[0].split(":")[0] for line in lines]
