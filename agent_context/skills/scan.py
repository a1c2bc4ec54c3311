"""Finding the skills in a directory of skills."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from agent_context.errors import SkillError
from agent_context.skills.inventory import MANIFEST
from agent_context.skills.skill import AgentSkill

__all__ = ["ScanResult", "SkillDiagnostic", "scan"]

logger = logging.getLogger(__name__)

_PASSED_OVER = frozenset({".git", "node_modules"})


class SkillDiagnostic(Struct, frozen=True):
    """Something about skills that their author, or who chose them, should know."""

    where: str
    """The directory, or the skill's name."""
    text: str


class ScanResult(Struct, frozen=True):
    """What was found."""

    skills: tuple[AgentSkill, ...] = ()
    """In the order of their directories' names."""
    diagnostics: tuple[SkillDiagnostic, ...] = ()
    """Which could not be loaded and why, and what was borne with in the others."""


def scan(root: str | os.PathLike[str], *, strict: bool = False) -> ScanResult:
    """Every immediate subdirectory with a SKILL.md; one that can't be read never hides another.

    Links to directories are not followed. Raises `SkillError` if `root` can't be listed.
    """
    try:
        entries = sorted(Path(root).iterdir())
    except OSError as error:
        raise SkillError(f"no skills in {os.fspath(root)!r}: {error.strerror}") from error
    skills: list[AgentSkill] = []
    found: list[SkillDiagnostic] = []
    if (Path(root) / MANIFEST).exists():
        found.append(
            _collect_diagnostics(root, "it is a skill itself; `AgentSkill.from_dir` reads it")
        )
    for path in entries:
        if path.name in _PASSED_OVER or not os.path.lexists(path / MANIFEST):
            continue
        if path.is_symlink():
            found.append(
                _collect_diagnostics(
                    path, "a link is not followed; add it by `AgentSkill.from_dir`"
                )
            )
            continue
        try:
            skill = AgentSkill.from_dir(path, strict=strict)
        except SkillError as error:
            found.append(_collect_diagnostics(path, str(error)))
        else:
            skills.append(skill)
            found += _load_all(path, skill.warnings)
    return ScanResult(tuple(skills), tuple(found))


def _load_all(where: Path, texts: Iterable[str]) -> list[SkillDiagnostic]:
    return [_collect_diagnostics(where, text) for text in texts]


def _collect_diagnostics(where: str | os.PathLike[str], text: str) -> SkillDiagnostic:
    logger.warning("skills: %s: %s", os.fspath(where), text)
    return SkillDiagnostic(os.fspath(where), text)
