"""The commands of docs/service.md run as they stand, on a service of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/service.md").read_text("utf-8")
ADDRESS = "http://127.0.0.1:8321"
BLOCK = re.compile(r"```(sh|py)\n(.*?)```\n(?:```text\n(.*?)```)?", re.DOTALL)
SERVE = "context-actor serve --model echo=echo"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """The service that the page starts, on a port that is free."""
    assert SERVE in PAGE
    command = [sys.executable, "-m", "agent_context.cli", *shlex.split(SERVE)[1:], "--port", "0"]
    process = subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield process.stdout.readline().split()[-1]
    process.terminate()
    process.wait()
    process.stdout.close()


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "XDG_DATA_HOME": str(folder)}


def commands() -> Iterator[tuple[str, str, str | None]]:
    """The language, the text and the output of all that is to be run."""
    for language, text, output in BLOCK.findall(PAGE):
        if language == "py":
            yield language, text, output
            continue
        for line in text.splitlines():
            if not line.startswith("pip ") and line != SERVE:
                yield language, line, None


def run(language: str, text: str, folder: Path) -> str:
    if language == "py":
        command = [sys.executable, "-W", "ignore", "-c", text]
    elif text.startswith("context-actor "):
        command = [sys.executable, "-m", "agent_context.cli", *shlex.split(text)[1:]]
    else:
        command = shlex.split(text)
    finished = subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, check=False, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page's commands are for curl")
def test_every_command_of_the_page_does_what_it_says(address: str, tmp_path: Path) -> None:
    told: dict[str, str] = {}
    keys = tmp_path / "keys"
    keys.mkdir()

    for language, text, output in commands():
        # Keys would shut out those who come without one.
        folder = keys if text.startswith("context-actor keys") else tmp_path
        said = run(language, text.replace(ADDRESS, address), folder)
        told[text] = said
        if output is not None and language == "py":
            assert said == output
        assert '"error"' not in said, (text, said)

    whole = "".join(told.values())
    for expected in ("You said: Hello", "event: finished", '"zone":"immutable"', "ac-", "laptop"):
        assert expected in whole
