"""What a process says, of which only so much is kept."""

from __future__ import annotations

import os
import threading
from typing import IO

__all__ = ["CapturedOutput"]

_CHUNK = 64 * 1_024


class CapturedOutput:
    """Reads a pipe to its end, on a thread, and keeps the beginning and the end of it."""

    def __init__(self, pipe: IO[bytes], most: int) -> None:
        self._pipe = pipe
        self._most_at_end = most // 2
        self._most_at_start = most - self._most_at_end
        self._start = bytearray()
        self._end = bytearray()
        self._size = 0
        # A daemon: who fled the process group may hold the pipe for ever.
        self._thread = threading.Thread(target=self._read, name="skill-script-output", daemon=True)
        self._thread.start()

    def finish(self, timeout: float) -> None:
        """Wait until everything is read; after `timeout` seconds what comes is not waited for."""
        self._thread.join(timeout)

    @property
    def truncated(self) -> bool:
        """Whether there was more than is kept."""
        return self._size > len(self._start) + len(self._end)

    @property
    def text(self) -> str:
        """What is kept, with a note where something is missing."""
        start, end = bytes(self._start), bytes(self._end)
        if not self.truncated:
            return (start + end).decode(errors="replace")
        missing = self._size - len(start) - len(end)
        head, tail = start.decode(errors="replace"), end.decode(errors="replace")
        return f"{head}\n[… {missing} bytes left out …]\n{tail}"

    def _read(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), _CHUNK):
                self._keep(chunk)

    def _keep(self, chunk: bytes) -> None:
        room = self._most_at_start - len(self._start)
        self._start += chunk[:room]
        self._end += chunk[room:]
        del self._end[: max(len(self._end) - self._most_at_end, 0)]
        self._size += len(chunk)
