"""The files that others run the service with: they say what there is."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"
PACKAGES = ("agent_context", "backends")
"""They may stand elsewhere, where these tests run on what was built of them."""


@pytest.fixture(scope="module")
def options() -> set[str]:
    """The options of `context-actor serve`."""
    command = [sys.executable, "-m", "agent_context.cli", "serve", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"--[a-z-]+", told))


def used(command: list[str]) -> set[str]:
    return {word for word in command if word.startswith("--")}


def test_the_container_serves_with_options_that_there_are(options: set[str]) -> None:
    said = (DEPLOY / "Containerfile").read_text("utf-8")
    command = json.loads(re.search(r"^CMD (.*)$", said, re.MULTILINE).group(1))  # type: ignore[union-attr]

    assert command[0] == "serve"
    assert used(command) <= options


def test_the_container_is_made_of_files_and_extras_that_there_are() -> None:
    said = (DEPLOY / "Containerfile").read_text("utf-8")
    copied = [
        word
        for line in re.findall(r"^COPY (.*)$", said, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    extras = re.search(r"'\.\[(.*?)\]'", said)
    project = (ROOT / "pyproject.toml").read_text("utf-8")

    assert [name for name in copied if name not in PACKAGES and not (ROOT / name).exists()] == []
    assert extras is not None
    assert [
        name
        for name in extras.group(1).split(",")
        if not re.search(rf"^{name} = \[", project, re.MULTILINE)
    ] == []


def test_compose_serves_on_a_database_that_it_starts(options: set[str]) -> None:
    said = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    service = said["services"]["service"]

    assert used(service["command"]) <= options
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert set(service["depends_on"]) <= set(said["services"])
    volumes = [each.split(":")[0] for one in said["services"].values() for each in one["volumes"]]
    assert set(volumes) == set(said["volumes"])


def test_the_unit_serves_with_options_that_there_are(options: set[str]) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "context-actor.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])

    assert program.endswith("/context-actor")
    assert arguments[0] == "serve"
    assert used(arguments) <= options
