"""Processes that write to one database, as the process sees them that started them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Self

Fact = dict[str, Any]


class Appender:
    """One such process, and all that it has said."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        lease: float,
        conversations: Sequence[str],
        *,
        program: str = "tests.support.appender",
    ) -> None:
        command = [sys.executable, "-m", program, dsn, schema, str(lease)]
        self._process = subprocess.Popen(
            [*command, *conversations], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lines: SimpleQueue[Fact | None] = SimpleQueue()
        self.said = list[Fact]()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self.until("ready")

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def until(self, what: str, count: int = 1, *, timeout: float = 30.0) -> list[Fact]:
        """Wait until it has said this often enough."""
        while len(self.all(what)) < count:
            said = self._lines.get(timeout=timeout)
            assert said is not None, f"it ended before it said {what} {count} times"
            self.said.append(said)
        return self.all(what)

    def all(self, what: str) -> list[Fact]:
        return [fact for fact in self.said if fact["what"] == what]

    def kill(self) -> None:
        """End it at once, and read what it said until then."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self.said += iter(self._lines.get, None)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self.kill()

    def _read(self) -> None:
        for fact in self._facts():
            self._lines.put(fact)
        self._lines.put(None)

    def _facts(self) -> Iterator[Fact]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                yield json.loads(line)
