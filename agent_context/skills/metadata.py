"""What is known of a skill before it is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent_context.errors import SkillError

__all__ = ["SkillMetadata", "one_line", "spec_violations"]

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 1_024
_LONGEST_COMPATIBILITY = 500
_JOINERS = "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class SkillMetadata:
    """A skill's name, what it is for, and what its author says beside."""

    name: str
    description: str
    license: str | None = None
    compatibility: str | None = None
    """What the skill needs of its surroundings."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whatever else the author notes."""

    def __post_init__(self) -> None:
        if not self.name or self.name != one_line(self.name):
            raise SkillError(
                f"skill {self.name!r}: a name is one line of visible characters, without spaces "
                "around it"
            )
        if not one_line(self.description):
            raise SkillError(f"skill {self.name!r}: a description is needed: what is it for?")


def one_line(text: str) -> str:
    """The text on one line, without anything that can't be seen."""
    words = "".join(c if c.isprintable() or c.isspace() or c in _JOINERS else "" for c in text)
    return " ".join(words.split())


def spec_violations(metadata: SkillMetadata, directory: str) -> Iterator[str]:
    """Where a skill in a directory of this name departs from the Agent Skills specification."""
    name = metadata.name
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        yield (
            f"name {name!r}: 1 to {_LONGEST_NAME} lower-case letters and digits are expected, in "
            "words joined by single hyphens"
        )
    if name != directory:
        yield f"name {name!r} is not that of its directory, {directory!r}"
    yield from _too_long("description", metadata.description, _LONGEST_DESCRIPTION)
    yield from _too_long("compatibility", metadata.compatibility or "", _LONGEST_COMPATIBILITY)


def _too_long(what: str, text: str, most: int) -> Iterator[str]:
    if len(text) > most:
        yield f"{what} has {len(text)} characters, {most} are allowed"
