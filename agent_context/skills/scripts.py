"""A skill's script, what came of running it, and the seam to whatever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from msgspec import Struct

__all__ = ["Script", "ScriptResult", "SkillScriptRunner"]


class Script(Struct, frozen=True):
    """A script that was read and may be run."""

    skill: str
    name: str
    """Where it lies, below the root."""
    root: Path
    """The skill's directory."""
    source: bytes
    """What to run. The file itself may be another one by now."""

    @property
    def path(self) -> Path:
        """What the script takes to be its own place."""
        return self.root / self.name


class ScriptResult(Struct, frozen=True):
    """How a script ended and what it said."""

    exit_code: int | None
    """None if it was killed because its time was up."""
    stdout: str
    stderr: str
    truncated: bool = False
    """Whether something in the middle of an output was left out."""


@runtime_checkable
class SkillScriptRunner(Protocol):
    """Runs scripts of skills. How far they are shut in is the runner's to decide."""

    async def run(self, script: Script, args: Sequence[str]) -> ScriptResult:
        """Run the script and wait for its end. Raises `SkillError` if it can't be started.

        Cancelling it ends the script.
        """
        ...
