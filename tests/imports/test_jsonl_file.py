import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_context._context.stored_message import from_message
from agent_context.errors import StoreUnavailable
from agent_context.imports import JsonlFile
from agent_context.messages import Message


def said(*texts: str) -> list[Message]:
    return [Message.user(text) for text in texts]


def texts(file: JsonlFile) -> list[str]:
    return [message.text for message in file.messages()]


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "new" / "chat.jsonl")
    assert file.messages() == ()

    messages = said("a", "b")
    file.append(messages)
    file.append(said("c"))

    assert texts(file) == ["a", "b", "c"]
    assert [message.id for message in file.messages()[:2]] == [message.id for message in messages]


@given(cut=st.integers(1, 200), padding=st.integers(0, 3))
def test_a_torn_tail_does_not_eat_the_next_record(
    tmp_path_factory: pytest.TempPathFactory, cut: int, padding: int
) -> None:
    file = JsonlFile(tmp_path_factory.mktemp("torn") / "chat.jsonl")
    file.append(said("a", "é" * 20))
    whole = file.path.read_bytes()
    left = whole[: max(0, len(whole) - cut)] + b"\0" * padding
    file.path.write_bytes(left)
    whole_lines = texts(file)

    quarantined = file.append(said("next"))

    assert texts(file) == [*whole_lines, "next"]
    assert file.read().quarantined == ()
    assert bool(quarantined) == file.torn.exists()
    if quarantined:
        assert file.torn.read_bytes() == left[left.rfind(b"\n") + 1 :] + b"\n"


def test_a_last_line_without_its_end_is_whole(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "chat.jsonl")
    file.path.write_text('{"role":"user","content":"a"}')

    assert file.append(said("b")) == ()
    assert texts(file) == ["a", "b"]


def test_a_long_torn_line_is_found_from_its_beginning(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "chat.jsonl")
    file.append(said("a"))
    start = file.path.stat().st_size
    with file.path.open("ab") as open_file:
        open_file.write(b'{"role":"user","content":"' + b"x" * 300_000)

    [torn] = file.append(said("b"))

    assert torn.where == f"{file.path}, byte {start}"
    assert len(torn.raw) > 300_000
    assert texts(file) == ["a", "b"]


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = JsonlFile(tmp_path / "chat.jsonl")
    file.append(said("a"))
    before = file.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StoreUnavailable, match="No space left"):
            file.append(said("b"))

    assert file.path.read_bytes() == before


def test_threads_and_processes_append_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    program = (
        "import sys; from agent_context import Message\n"
        "from agent_context.imports import JsonlFile\n"
        "for n in range(50): JsonlFile(sys.argv[1]).append([Message.user('x' * 3000)])"
    )
    others = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    file = JsonlFile(path)
    threads = [
        threading.Thread(target=lambda: [file.append(said("y" * 3000)) for _ in range(20)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [other.wait() for other in others] == [0, 0]

    assert len(file.messages()) == 160
    assert file.read().quarantined == ()
    assert not file.torn.exists()


@pytest.mark.parametrize("acknowledged", [1, 2, 5, 9, 14])
def test_a_killed_writer_loses_nothing_that_it_had_acknowledged(
    tmp_path: Path, acknowledged: int
) -> None:
    file = JsonlFile(tmp_path / "chat.jsonl")
    program = (
        "import sys; from agent_context import Message\n"
        "from agent_context.imports import JsonlFile\n"
        "for n in range(10**6):\n"
        "    JsonlFile(sys.argv[1]).append([Message.user(f'{n} ' + 'x' * 200_000)])\n"
        "    print(n, flush=True)"
    )
    command = [sys.executable, "-c", program, str(file.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        last = [int(writer.stdout.readline()) for _ in range(acknowledged)][-1]
        writer.kill()

    file.append(said("next"))

    *kept, behind = (text.split()[0] for text in texts(file))
    assert behind == "next"
    assert kept == [str(n) for n in range(len(kept))]
    assert len(kept) > last
    assert file.read().quarantined == ()


def test_the_lines_are_what_a_conversation_exports(tmp_path: Path) -> None:
    file = JsonlFile(tmp_path / "chat.jsonl")
    [message] = said("a")

    file.append([message])

    assert file.path.read_bytes() == from_message(message).to_json_line() + b"\n"


def test_a_mended_line_may_hold_a_number_that_few_can_write(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    broken = rb'{"role":"user","content":"hi \ud800","n":123456789012345678901234567890}'
    path.write_bytes(broken)
    JsonlFile(path).append(said("next"))
    lines = path.read_bytes().splitlines()
    assert b"123456789012345678901234567890" in lines[0]
    assert b'"next"' in lines[1]
