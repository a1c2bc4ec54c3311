"""What can be asked here, and what is amiss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_context.stores.sqlite import SqliteStore
from tests.support.waiting import WAIT


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run(
        [sys.executable, "-m", "agent_context.cli", *arguments],
        env={**kept, **environment}, capture_output=True, text=True, timeout=WAIT, check=False,
    )  # fmt: skip


def test_models_are_listed_with_window_price_and_whether_a_key_is_set() -> None:
    done = run("models", "anthropic", "--json", ANTHROPIC_API_KEY="sk-ant-none")

    rows = {row["model"]: row for row in map(json.loads, done.stdout.splitlines())}
    sonnet = rows["claude-sonnet-4-6"]
    assert (sonnet["context_window"], sonnet["input_price"]) == (1_000_000, 3.0)
    assert (sonnet["usable"], sonnet["default"]) == (True, True)
    assert "sk-ant-none" not in done.stdout


def test_every_backend_has_a_line() -> None:
    listed = {line.split("\t")[0].partition(":")[0] for line in run("models").stdout.splitlines()}

    assert {"anthropic", "deepseek", "openai", "zhipu", "local", "ollama"} <= listed


def test_a_backend_that_is_not_installed_says_what_is() -> None:
    done = run("models", "nothing")

    assert done.returncode == 1
    assert "there is no 'nothing'; there is anthropic" in done.stderr


def test_a_doctor_finds_a_healthy_store_and_shows_no_key(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "talks.db").close()

    done = run("doctor", "--store", str(tmp_path / "talks.db"), DEEPSEEK_API_KEY="sk-secret-1")

    assert done.returncode == 0, done.stdout
    assert "key of deepseek: DEEPSEEK_API_KEY is set" in done.stdout
    assert "the file is sound" in done.stdout
    assert "sk-secret-1" not in done.stdout + done.stderr


@pytest.mark.parametrize("broken", [True, False])
def test_a_doctor_ends_with_a_status_where_something_is_amiss(broken: bool, tmp_path: Path) -> None:
    path = tmp_path / "talks.db"
    if broken:
        path.write_bytes(b"no database at all" * 100)

    done = run("doctor", "--store", str(path), "--json")

    findings = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert [each["check"] for each in findings if each["ok"] is False] == ["store"]
