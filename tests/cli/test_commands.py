"""The command line: quick to help, clear when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = [
    "fastapi",
    "httpx",
    "openai",
    "pydantic",
    "rich",
    "starlette",
    "uvicorn",
    "prometheus_client",
]


def run(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_DATA_HOME": str(data), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "agent_context.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=60,
    )


def test_help_names_the_commands(tmp_path: Path) -> None:
    helped = run("--help", data=tmp_path)

    assert helped.returncode == 0, helped.stderr
    assert "serve" in helped.stdout
    assert "keys" in helped.stdout


def test_help_loads_nothing_that_is_slow(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from agent_context.cli import main\n"
        "sys.argv = ['context-actor', '--help']\n"
        "try:\n main()\nexcept SystemExit:\n print(*sys.modules, file=sys.stderr)\n"
    )

    helped = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "serve" in helped.stdout
    assert [name for name in HEAVY if name in helped.stderr.split()] == []


def test_keys_are_made_listed_and_revoked(tmp_path: Path) -> None:
    made = run("keys", "create", "--tenant", "ann", "--name", "laptop", data=tmp_path)
    key_id = made.stderr.partition(":")[0]
    listed = run("keys", "list", data=tmp_path)
    revoked = run("keys", "revoke", key_id, data=tmp_path)
    again = run("keys", "revoke", key_id, data=tmp_path)

    assert made.stdout.startswith("ac-")
    assert made.stdout.strip() not in listed.stdout
    assert listed.stdout.split()[:3] == [key_id, "ann", "write"]
    assert revoked.returncode == 0
    assert again.returncode == 1
    assert again.stderr == f"context-actor: there is no key '{key_id}'\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--store", "mysql://x"], "store: sqlite:///FILE or postgresql://…, not mysql://…"),
        (["--model", "gpt"], "model: NAME=BACKEND[:MODEL] is expected, not 'gpt'"),
        (["--model", "a=magic"], "backend: there is no 'magic'; there is"),
        (["--on-rewrite", "x"], "on-rewrite: fork or rewind, not 'x'"),
        (["--model", "a=echo", "--host", "0.0.0.0"], "without a key only this machine"),
    ],
)
def test_serving_what_cannot_be_served_says_why(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    refused = run("serve", "--port", "0", *arguments, data=tmp_path)

    assert refused.returncode == 1
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_every_command_is_on_the_page_about_them(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    listed = run("--help", data=tmp_path).stdout.partition("Commands:")[2]
    names = [
        line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "
    ]

    assert names
    assert [
        name for name in names if f"`{name}" not in page and f"context-actor {name}" not in page
    ] == []
