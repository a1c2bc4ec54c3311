"""The files of a skill: what there is is listed once, and nothing else is ever opened."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePosixPath

from agent_context._sandbox_fs import SandboxedDirectory, split_relative_path
from agent_context.errors import PathNotAllowed, SkillError

__all__ = ["MANIFEST", "SkillInventory", "as_text", "list_files", "resolve"]

MANIFEST = "SKILL.md"

_DEPTH = 8
_MOST_FILES = 1_000
_SHOWN = 20
_RESOURCE_FOLDERS = ("references", "assets")
_NOT_FOR_THE_MODEL = frozenset({"license", "licence", "notice"})
_PASSED_OVER = frozenset({"__pycache__", "node_modules"})
_PROGRAMS = frozenset(
    {"", ".bash", ".cjs", ".js", ".mjs", ".pl", ".ps1", ".py", ".rb", ".sh", ".ts"}
)


@dataclass(frozen=True, slots=True)
class SkillInventory:
    """Names relative to the skill's directory, in a stable order."""

    resources: tuple[str, ...] = ()
    """What may be read: all but SKILL.md, licences, hidden files and what is in scripts/."""
    scripts: tuple[str, ...] = ()
    """Programs in scripts/."""
    has_resources: bool = False
    """Whether there are resources, or folders for them."""
    has_scripts: bool = False
    """Whether there is any file in scripts/."""
    left_out: int = 0
    """How many files were beyond the limits, at least, or have names that are no UTF-8."""


def list_files(root: SandboxedDirectory) -> SkillInventory:
    """What a skill has, within limits of depth and number. Links are not followed or listed."""
    found = root.files(depth=_DEPTH, count=_MOST_FILES + 1, skip=_is_passed_over)
    names = [file.name for file in found]
    known = [name for name in names[:_MOST_FILES] if _is_text(name)]
    resources = tuple(name for name in known if _is_resource(name))
    below_scripts = [name for name in known if name.startswith("scripts/")]
    folders = (root.path / folder for folder in _RESOURCE_FOLDERS)
    return SkillInventory(
        resources=resources,
        scripts=tuple(n for n in below_scripts if PurePosixPath(n).suffix.lower() in _PROGRAMS),
        has_resources=bool(resources) or any(f.is_dir() and not f.is_symlink() for f in folders),
        has_scripts=bool(below_scripts),
        left_out=len(names) - len(known),
    )


def _is_passed_over(name: str) -> bool:
    return name.startswith(".") or name in _PASSED_OVER


def _is_text(name: str) -> bool:
    """Whether the name can be told to a model: one that is no UTF-8 can't be."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_resource(name: str) -> bool:
    path = PurePosixPath(name)
    top = path.parts[0]
    if len(path.parts) == 1 and path.stem.lower() in _NOT_FOR_THE_MODEL:
        return False
    return top not in {MANIFEST, "scripts"} and path.name != MANIFEST


def resolve(name: str, names: Sequence[str], *, what: str) -> str:
    """The listed name that `name` means: itself, or the one file of that name in any folder.

    references/ comes before assets/, and both before the rest. Raises `SkillError`.
    """
    try:
        wanted = "/".join(split_relative_path(name))
    except PathNotAllowed as error:
        raise SkillError(f"{what} {error}") from error
    if wanted in names:
        return wanted
    candidates = [known for known in names if known.rpartition("/")[2] == wanted]
    for folder in _RESOURCE_FOLDERS:
        here = [known for known in candidates if known.startswith(f"{folder}/")]
        candidates = here or candidates
        if here:
            break
    if len(candidates) > 1:
        raise SkillError(f"{what} {name!r} may be any of {_list(candidates)}: give the whole path")
    if not candidates:
        raise SkillError(f"{what} {name!r} not found; there are: {_list(names)}")
    return candidates[0]


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(islice(_reprs(names), _SHOWN)) or "none"
    rest = len(names) - _SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _reprs(names: Iterable[str]) -> Iterable[str]:
    return map(repr, names)


def as_text(name: str, content: bytes) -> str:
    """The content of a file that a model can read. Raises `SkillError` for a binary one."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SkillError(
            f"{name!r} is binary ({len(content)} bytes) and can't be read as text; "
            "a script of the skill may use it"
        )
    return text
