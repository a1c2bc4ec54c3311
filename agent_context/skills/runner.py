"""Scripts of skills as processes of this machine: with a deadline and no more, not in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, cast

from agent_context.errors import InvalidOptions, SkillError
from agent_context.skills.captured_output import CapturedOutput
from agent_context.skills.interpreters import PROGRAMS, command
from agent_context.skills.scripts import Script, ScriptResult

__all__ = ["SubprocessScriptRunner"]

_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "TMPDIR", "TZ")
_FIRST_LOOK, _LAST_LOOK = 0.001, 0.05
_GRACE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubprocessScriptRunner:
    """Runs .py, .sh and .js scripts as processes, in the skill's directory.

    No shell reads the arguments, the script's text comes from the file that was checked, and when
    the script ends, its time is up or the call is cancelled, its whole process group is killed.
    What the script imports or starts is read as always, and it may do what this process may: run
    skills that you trust, or bring a `SkillScriptRunner` that shuts them in.
    """

    timeout: float = 30.0
    """Seconds."""
    max_output: int = 64 * 1_024
    """Bytes kept of each output: its beginning and its end."""
    env: Sequence[str] = _ENVIRONMENT
    """Names of the environment variables that a script gets to see."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables that are set for it."""
    programs: Mapping[str, str] = field(default_factory=dict[str, str])
    """What runs scripts with a suffix, instead of this Python, bash (or sh) and node."""

    def __post_init__(self) -> None:
        if self.timeout <= 0 or self.max_output < 1:
            raise InvalidOptions("SubprocessScriptRunner: timeout and max_output must be positive")
        if unknown := self.programs.keys() - PROGRAMS.keys():
            raise InvalidOptions(
                f"SubprocessScriptRunner: programs for {sorted(unknown)}; scripts are "
                f"{', '.join(PROGRAMS)}"
            )

    async def run(self, script: Script, args: Sequence[str]) -> ScriptResult:
        """Run the script on a thread that waits for it. Raises `SkillError` if it can't start."""
        if sys.platform == "win32":
            raise SkillError("SubprocessScriptRunner needs POSIX: bring a runner of your own")
        if any("\0" in argument for argument in args):
            raise SkillError(f"script {script.name!r}: an argument has no NUL character")
        process = _Process(self, script, args)
        try:
            return await asyncio.to_thread(process.run)
        finally:
            process.stopped.set()

    def environment(self, script: Script) -> dict[str, str]:
        """What the script finds in its environment."""
        allowed = {name: os.environ[name] for name in self.env if name in os.environ}
        return {"PYTHONUTF8": "1", **allowed, "SKILL_DIR": str(script.root), **self.variables}


class _Process:
    """One run, on a thread of its own. Setting `stopped` ends it."""

    def __init__(self, runner: SubprocessScriptRunner, script: Script, args: Sequence[str]) -> None:
        self.stopped = threading.Event()
        self._runner = runner
        self._script = script
        self._args = args

    def run(self) -> ScriptResult:
        with tempfile.TemporaryFile() as text:
            argv, source = command(self._script, text.fileno(), self._args, self._runner.programs)
            text.write(source)
            text.seek(0)
            with self._start(argv, text.fileno()) as process:
                pipes = cast("list[IO[bytes]]", [process.stdout, process.stderr])
                outputs = [CapturedOutput(pipe, self._runner.max_output) for pipe in pipes]
                in_time = self._wait(process)
                _kill_group(process)
                for output in outputs:
                    output.finish(_GRACE)
        stdout, stderr = outputs
        return ScriptResult(
            exit_code=process.returncode if in_time else None,
            stdout=stdout.text,
            stderr=stderr.text,
            truncated=stdout.truncated or stderr.truncated,
        )

    def _start(self, argv: Sequence[str], descriptor: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(  # noqa: S603 - a list, no shell; the program is the runner's
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._script.root,
                env=self._runner.environment(self._script),
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SkillError(f"script {self._script.name!r} can't be started: {error}") from error

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether the process ended by itself before its deadline."""
        deadline, pause = monotonic() + self._runner.timeout, _FIRST_LOOK
        while not _has_ended(process):
            if monotonic() >= deadline or self.stopped.wait(pause):
                return False
            pause = min(2 * pause, _LAST_LOOK)
        return True


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if sys.platform in {"darwin", "win32"}:
        return process.poll() is not None
    # Not collected yet, so that the number of its group can't be somebody else's.
    look = os.WEXITED | os.WNOWAIT | os.WNOHANG
    return os.waitid(os.P_PID, process.pid, look) is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform != "win32":
        with suppress(ProcessLookupError, PermissionError):  # macOS: for a group of the dead
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
