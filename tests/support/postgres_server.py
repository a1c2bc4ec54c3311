"""A PostgreSQL server of the tests' own, from the programs that are installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tests.support.waiting import wait_until

USERS = ("postgres", "nobody")
"""Whose it is when the tests are root's, for whom no server runs."""


def programs() -> Path | None:
    """Where the server's programs are."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


class PostgresServer:
    """Durable as any, reached over a socket only, gone with its files at the end."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = _user()
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        if self._user:
            shutil.chown(self._folder, self._user)
        self._data = self._folder / "data"
        self.dsn = f"postgresql://postgres@/postgres?host={self._folder}"
        self._run("initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale")

    def start(self) -> None:
        # What a killed server left of itself may hold up the next one for a moment.
        wait_until(self._starts)

    def kill(self) -> None:
        """End it as a loss of power to the process would: nothing is written any more."""
        pid = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "--mode=immediate")
        shutil.rmtree(self._folder)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _starts(self) -> bool:
        options = f"-c listen_addresses='' -c unix_socket_directories={self._folder}"
        log = f"--log={self._folder / 'log'}"
        started = self._run("pg_ctl", "start", log, f"--options={options}", check=False)
        return started and self._answers()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str, check: bool = True) -> bool:
        finished = subprocess.run(
            [self._programs / program, f"--pgdata={self._data}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=self._user,
            check=check,
        )
        return finished.returncode == 0


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    from pwd import getpwnam

    for name in USERS:
        try:
            getpwnam(name)
        except KeyError:
            continue
        return name
    return None
