"""What is stored, from the command line: every command as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINES = [
    {"role": "user", "content": "Where is the cat?"},
    {"role": "assistant", "content": "On the roof."},
    {"role": "user", "content": "And the dog?"},
    {"role": "assistant", "content": "In the garden — as ever."},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a store that holds one conversation, `pets`."""
    write_lines(tmp_path / "pets.jsonl")
    assert run("import", "pets.jsonl", "--id", "pets", folder=tmp_path).stdout == "pets\t4\n"
    return tmp_path


def write_lines(file: Path) -> None:
    file.write_text("\n".join(map(json.dumps, LINES)), "utf-8")


def run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_KEY")}
    return subprocess.run(
        [sys.executable, "-m", "agent_context.cli", *arguments],
        capture_output=True,
        check=False,
        cwd=folder,
        encoding="utf-8",
        env={**kept, "PYTHONIOENCODING": "utf-8", **variables},
        timeout=60,
    )


def texts(folder: Path, conversation: str) -> list[str]:
    listed = run("inspect", conversation, "--json", folder=folder).stdout.splitlines()
    return [json.loads(line)["message"]["parts"][0]["text"] for line in listed]


def test_sessions_lists_what_is_stored(folder: Path) -> None:
    listed = run("sessions", "--json", folder=folder)

    assert [json.loads(line)["id"] for line in listed.stdout.splitlines()] == ["pets"]


def test_the_store_may_be_named_by_the_environment(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    store = str(folder / "context-actor.db")

    assert "pets" in run("sessions", folder=elsewhere, CONTEXT_ACTOR_STORE=store).stdout
    assert "pets" in run("sessions", "--store", store, folder=elsewhere).stdout


def test_log_prints_what_was_said_or_its_end(folder: Path) -> None:
    whole = run("log", "pets", folder=folder).stdout
    last = run("log", "pets", "-n", "1", "--json", folder=folder).stdout

    assert whole.index("On the roof.") < whole.index("In the garden — as ever.")
    assert [json.loads(line)["message"]["role"] for line in last.splitlines()] == ["assistant"]


def test_search_finds_words_in_all_conversations(folder: Path) -> None:
    found = run("search", "garden", folder=folder)

    assert found.stdout.startswith("pets ")
    assert "In the garden" in found.stdout
    assert run("search", "submarine", folder=folder).stdout == ""


def test_what_is_exported_can_be_imported(folder: Path) -> None:
    run("export", "pets", "out.jsonl", folder=folder)
    again = run("import", "out.jsonl", folder=folder)

    assert again.stdout == "out\t4\n"
    assert texts(folder, "out") == texts(folder, "pets")
    assert run("export", "out", folder=folder).stdout == (folder / "out.jsonl").read_text("utf-8")


def test_an_export_replaces_no_file_unasked(folder: Path) -> None:
    refused = run("export", "pets", "pets.jsonl", folder=folder)

    assert refused.returncode == 1
    assert refused.stderr == ("context-actor: pets.jsonl is there already; --force replaces it\n")
    assert run("export", "pets", "pets.jsonl", "--force", folder=folder).returncode == 0


def test_importing_twice_changes_nothing(folder: Path) -> None:
    again = run("import", "pets.jsonl", "--id", "pets", folder=folder)

    assert again.returncode == 0
    assert "is there already" in again.stderr
    assert len(texts(folder, "pets")) == 4


def test_a_fork_leaves_its_parent_alone(folder: Path) -> None:
    assert run("fork", "pets", "other", "--at", "2", folder=folder).stdout == "other\n"

    assert texts(folder, "other") == ["Where is the cat?", "On the roof."]
    assert len(texts(folder, "pets")) == 4


def test_a_rewind_takes_turns_back_and_can_be_undone(folder: Path) -> None:
    run("rewind", "pets", "--turns", "1", folder=folder)
    cut = texts(folder, "pets")
    run("rewind", "pets", "--undo", folder=folder)

    assert cut == ["Where is the cat?", "On the roof."]
    assert len(texts(folder, "pets")) == 4


def test_compress_says_what_it_took_away_and_when_there_is_nothing_left(folder: Path) -> None:
    first, second = (run("compress", "pets", "--model", "echo", folder=folder) for _ in "ab")

    assert "3 messages removed" in first.stdout
    assert texts(folder, "pets") == [LINES[-1]["content"]]
    assert (second.stdout, second.returncode) == ("", 0)
    assert "nothing to compress" in second.stderr


def test_context_shows_a_grid_of_a_hundred_cells(folder: Path) -> None:
    shown = run("context", "pets", "--model", "deepseek", folder=folder).stdout
    figures = json.loads(
        run("context", "pets", "--model", "deepseek", "--json", folder=folder).stdout
    )

    assert sum(len(line.split()) for line in shown.splitlines()[:5]) == 100
    assert f"{figures['total']} of {figures['window']} tokens" in shown
    assert figures["incremental"] > 0


@pytest.mark.parametrize("vendor", ["deepseek", "openai", "zhipu"])
def test_inspect_prints_the_request_that_a_vendor_would_get(folder: Path, vendor: str) -> None:
    body = json.loads(run("inspect", "pets", "--as", vendor, "--text", "Bye", folder=folder).stdout)

    assert [each["content"] for each in body["messages"]] == [
        *(line["content"] for line in LINES),
        "Bye",
    ]
    assert len(texts(folder, "pets")) == 4


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["log", "nobody"], 1, "the store has no conversation nobody"),
        (["log"], 2, "Missing argument"),
        (["context", "pets", "--model", "magic"], 1, "backend: there is no 'magic'; there is"),
        (["inspect", "pets", "--as", "echo"], 1, "echo has no request of its own"),
        (["rewind", "pets"], 1, "give --to, --turns or --undo, one of them"),
        (["rewind", "pets", "--turns", "3"], 1, "there are 2 turns to take back, not 3"),
        (["import", "nothing.jsonl"], 1, "nothing.jsonl: No such file or directory"),
        (["import", "pets.jsonl", "--format", "xml"], 1, "format: one of jsonl, "),
        (["sessions", "--store", "none.db"], 1, "there is no file none.db"),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    folder: Path, arguments: list[str], status: int, said: str
) -> None:
    refused = run(*arguments, folder=folder)

    assert refused.returncode == status
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    if status == 1:
        assert refused.stderr.count("\n") == 1


def test_several_keys_ask_which_vendor_and_show_none(folder: Path) -> None:
    refused = run(
        "context",
        "pets",
        folder=folder,
        DEEPSEEK_API_KEY="sk-one-secret",
        OPENAI_API_KEY="sk-two-secret",
    )

    assert refused.returncode == 1
    assert "say which, as in --model deepseek" in refused.stderr
    assert "secret" not in refused.stderr
