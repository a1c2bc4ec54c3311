"""A talk at a terminal, and a question in a pipe, as real processes."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.sse_server import STALL, Reply, SseServer, answer, in_thread, sse
from tests.support.waiting import WAIT

pty = pytest.importorskip("pty")

COMMAND = [sys.executable, "-m", "agent_context.cli", "chat"]


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has no keys and a store of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return {**kept, "CONTEXT_ACTOR_STORE": str(tmp_path / "talks.db"), "TERM": "dumb"}


def asked(
    *arguments: str, place: dict[str, str], said: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=said, env=place, capture_output=True, text=True, timeout=WAIT, check=False,
    )  # fmt: skip


class Terminal:
    """Somebody who sits at a terminal and reads what comes."""

    def __init__(self, *arguments: str, place: dict[str, str]) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.execvpe(COMMAND[0], [*COMMAND, *arguments], place)
        self.seen = ""
        self.status: int | None = None

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def read_until(self, pattern: str) -> str:
        """What comes up to a match, which is taken away."""
        until = time.monotonic() + WAIT
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < until, self.seen
            ready, _, _ = select.select([self.end], [], [], 1.0)
            if ready:
                try:
                    self.seen += os.read(self.end, 65536).decode()
                except OSError:
                    raise AssertionError(f"it ended: {self.seen}") from None
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def interrupt_until(self, word: str) -> None:
        """Press Ctrl-C until a word comes: one that comes between two reads may pass unseen."""
        until = time.monotonic() + WAIT
        while word not in self.seen:
            assert time.monotonic() < until, self.seen
            self.type("\x03")
            if select.select([self.end], [], [], 1.0)[0]:
                self.seen += os.read(self.end, 65536).decode()

    def wait(self) -> int:
        """The status that it ends with."""
        with suppress(OSError):
            while os.read(self.end, 65536):
                pass
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def model() -> Iterator[SseServer]:
    """A model that says a word and no more, and then answers."""
    word = {"model": "m", "choices": [{"index": 0, "delta": {"content": "Once "}}]}
    usage = {"prompt_tokens": 100, "completion_tokens": 3, "total_tokens": 103}
    usage |= {"prompt_tokens_details": {"cached_tokens": 90}}  # type: ignore[dict-item]
    with in_thread(
        [Reply([*sse(word, done=False), STALL]), answer("Well.", usage=usage)]
    ) as server:
        yield server


def test_a_question_is_answered_and_nothing_else_is_printed(place: dict[str, str]) -> None:
    done = asked("-m", "echo", "How are you?", place=place)

    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: How are you?\n", "")


def test_a_question_may_come_by_a_pipe_and_go_on_with_the_last_talk(place: dict[str, str]) -> None:
    asked("-m", "echo", "one", place=place)
    done = asked("-m", "echo", "--last", "--json", "two:", place=place, said="a whole file\n")

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "".join(line["text"] for line in lines[:-1]) == "You said: two:\n\na whole file"
    assert lines[-1]["type"] == "finished"
    assert lines[-1]["message"]["role"] == "assistant"
    listed = subprocess.run(
        [sys.executable, "-m", "agent_context.cli", "sessions", "--json"],
        env=place, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [json.loads(line)["id"] for line in listed.stdout.splitlines()] == [
        lines[-1]["conversation"]
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "echo"), "there is no question in the pipe"),
        (("-m", "nothing", "hi"), "there is no 'nothing'"),
        (("-m", "echo", "--last", "hi"), "there is no conversation yet"),
        (("-m", "deepseek", "hi"), "DEEPSEEK_API_KEY"),
    ],
)
def test_what_can_not_be_done_says_why_on_one_line(
    arguments: tuple[str, ...], words: str, place: dict[str, str]
) -> None:
    done = asked(*arguments, place=place)

    assert done.returncode == 1
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_talk_goes_on_until_one_leaves(place: dict[str, str]) -> None:
    terminal = Terminal("-m", "echo", "--id", "mine", place=place)

    assert "mine · echo" in terminal.read_until("> ")
    terminal.type("Hello\\\nthere\n")
    assert "You said: Hello\r\nthere" in terminal.read_until(r"window \d+%.*\n")
    terminal.type("/rewind\n")
    terminal.read_until("2 messages were removed")
    terminal.type("/undo\n")
    terminal.read_until("2 messages came back")
    terminal.type("/context\n")
    terminal.read_until("incremental")
    terminal.type("/fork other\n")
    terminal.read_until("this is other now")
    terminal.type("/search there\n")
    terminal.read_until("user: Hello there")
    terminal.type("/nonsense\n")
    terminal.read_until("there is no /nonsense")
    terminal.type("/help\n")
    terminal.read_until("/export FILE")
    terminal.type("/quit\n")

    assert terminal.wait() == 0


def test_ctrl_c_stops_the_answer_and_not_the_talk(place: dict[str, str], model: SseServer) -> None:
    place = {**place, "OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": f"{model.url}/v1"}
    terminal = Terminal("-m", "openai:m", "--id", "mine", place=place)
    terminal.read_until("> ")

    terminal.type("Tell me a story.\n")
    terminal.read_until("Once ")
    terminal.type("\x03")
    terminal.read_until(r"\[stopped\][\s\S]*> ")
    terminal.type("And?\n")
    assert "100 tokens in (90% cached), 3 out" in terminal.read_until(r"3 out.*\n")
    terminal.type("/log\n")
    assert "Once " in terminal.read_until(r"assistant: Well\.\s*> ")
    terminal.interrupt_until("once more")
    terminal.type("/quit\n")

    assert terminal.wait() == 0


def test_ctrl_c_ends_a_single_question_with_its_own_status(
    place: dict[str, str], model: SseServer
) -> None:
    place = {**place, "OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": f"{model.url}/v1"}
    terminal = Terminal("-m", "openai:m", "Tell me a story.", place=place)
    terminal.read_until("Once ")
    terminal.type("\x03")

    assert terminal.wait() == 130
