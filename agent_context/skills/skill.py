"""A skill: what it is for, its instructions, its documents and scripts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from agent_context._sandbox_fs import SandboxedDirectory, split_relative_path
from agent_context._validation import check_type
from agent_context.errors import PathNotAllowed, SkillError
from agent_context.skills.frontmatter import SkillFile, instructions_of, read_skill_file
from agent_context.skills.inventory import MANIFEST, SkillInventory, as_text, list_files, resolve
from agent_context.skills.metadata import SkillMetadata, spec_violations
from agent_context.skills.scripts import Script

__all__ = ["AgentSkill"]

_LARGEST_MANIFEST = 1_024 * 1_024
_LARGEST_RESOURCE = 256 * 1_024
_LARGEST_SCRIPT = 1_024 * 1_024
_NO_FILES = SkillInventory()


@dataclass(frozen=True, slots=True)
class AgentSkill:
    """A skill from a directory or from a program, made by `from_dir` or `dynamic`.

    Of a directory only those files are opened that were there when it was read, each time anew,
    and without following links below the directory. A hard link is a file like any other.
    """

    metadata: SkillMetadata
    root_dir: Path | None = None
    """Its directory; None for a dynamic one."""
    instructions: str | None = None
    """Of a dynamic skill; those of a directory are read when they are loaded."""
    resources: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Of a dynamic skill, by name."""
    files: SkillInventory = _NO_FILES
    """What there is in the directory."""
    warnings: tuple[str, ...] = ()
    """What departs from the Agent Skills specification, and was borne."""

    @classmethod
    def from_dir(cls, path: str | os.PathLike[str], *, strict: bool = False) -> Self:
        """The skill in a directory with a SKILL.md. Raises `SkillError` if it can't be read.

        With `strict` also if it departs from the Agent Skills specification; else it only must have
        a description, and what departs is noted in `warnings`.
        """
        try:
            root = SandboxedDirectory(path)
            said = read_skill_file(_manifest(root), default_name=root.path.name)
            files = list_files(root)
        except (SkillError, PathNotAllowed) as error:
            raise SkillError(f"skill in {os.fspath(path)!r}: {error}") from error
        warnings = tuple(_warnings(said, Path(path), files, strict=strict))
        if strict and warnings:
            raise SkillError(f"skill in {os.fspath(path)!r}: {'; '.join(warnings)}")
        return cls(said.metadata, root_dir=root.path, files=files, warnings=warnings)

    @classmethod
    def dynamic(cls, metadata: SkillMetadata, instructions: str) -> Self:
        """A skill that has no directory."""
        check_type("metadata", metadata, SkillMetadata)
        return cls(metadata, instructions=check_type("instructions", instructions, str))

    def with_resource(self, path: str, content: str | bytes) -> Self:
        """This dynamic skill with a document more, or another one in its place."""
        if self.root_dir is not None:
            raise SkillError(
                f"skill {self.name!r} is a directory: put {path!r} in there, or make it dynamic"
            )
        try:
            name = "/".join(split_relative_path(path))
        except PathNotAllowed as error:
            raise SkillError(f"skill {self.name!r}: {error}") from error
        data = content.encode() if isinstance(content, str) else bytes(content)
        return replace(self, resources={**self.resources, name: data})

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def resource_names(self) -> tuple[str, ...]:
        """The documents that can be read."""
        return tuple(sorted(self.resources)) if self.root_dir is None else self.files.resources

    @property
    def script_names(self) -> tuple[str, ...]:
        """The scripts that can be run."""
        return self.files.scripts

    def has_resources(self) -> bool:
        """Whether there are documents to read, or folders for them."""
        return bool(self.resources) or self.files.has_resources

    def has_scripts(self) -> bool:
        """Whether there is anything in scripts/."""
        return self.files.has_scripts

    def load_instructions(self) -> str:
        """What the model should know and do, without the frontmatter. Raises `SkillError`."""
        if self.root_dir is None:
            return self.instructions or ""
        try:
            return instructions_of(_manifest(_again(self.root_dir)))
        except (SkillError, PathNotAllowed) as error:
            raise SkillError(f"skill {self.name!r}: {error}") from error

    def resource_name(self, name: str) -> str:
        """The listed name of a document that is named by its path, or by its last part alone."""
        return resolve(name, self.resource_names, what=f"skill {self.name!r}: resource")

    def read_resource(self, name: str) -> str:
        """A document's text. Raises `SkillError` for one that isn't listed, or isn't text."""
        return as_text(name, self.read_bytes(name))

    def read_bytes(self, name: str) -> bytes:
        """A document's bytes. Raises `SkillError` for one that isn't listed, or is too large."""
        known = self.resource_name(name)
        if self.root_dir is None:
            return self.resources[known]
        return self._read(self.root_dir, known, _LARGEST_RESOURCE)

    def script(self, name: str) -> Script:
        """A listed script, read now: it stays what it is, whatever becomes of its file."""
        what = f"skill {self.name!r}: script"
        if self.root_dir is None:
            raise SkillError(f"{what} {name!r} not found: a dynamic skill has none")
        known = resolve(name, self.script_names, what=what)
        source = self._read(self.root_dir, known, _LARGEST_SCRIPT)
        return Script(skill=self.name, name=known, root=self.root_dir, source=source)

    def _read(self, root: Path, name: str, limit: int) -> bytes:
        try:
            return _again(root).read(name, limit)
        except PathNotAllowed as error:
            raise SkillError(f"skill {self.name!r}: {error}") from error


def _again(path: Path) -> SandboxedDirectory:
    """The directory of a skill, unless a link has taken its place since the skill was read."""
    root = SandboxedDirectory(path)
    if root.path != path:
        raise PathNotAllowed(str(path), "a link has taken its place")
    return root


def _manifest(root: SandboxedDirectory) -> str:
    content = root.read(MANIFEST, _LARGEST_MANIFEST)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise SkillError(f"{MANIFEST} is not UTF-8: byte {error.start}") from error


def _warnings(said: SkillFile, path: Path, files: SkillInventory, *, strict: bool) -> list[str]:
    found = [*said.problems, *spec_violations(said.metadata, path.resolve().name)]
    if files.left_out:
        found.append("it has more files than are listed")
    if strict and said.unknown:
        found.append(f"the specification has no fields {', '.join(map(repr, said.unknown))}")
    return found
