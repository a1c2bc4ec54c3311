"""A SKILL.md file taken apart: YAML between two `---` lines, and the instructions behind it.

Real YAML, read as a tree of which only scalars are looked at: no value becomes anything but text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_context.errors import SkillError
from agent_context.skills.metadata import SkillMetadata, one_line

if TYPE_CHECKING:
    from yaml import Node

__all__ = ["SkillFile", "instructions_of", "read_skill_file"]

_WHOLE = re.compile(r"---[ \t]*\n(.*?)^---[ \t]*(?:\n(.*))?\Z", re.DOTALL | re.MULTILINE)
_PLAIN_FIELD = re.compile(r"([A-Za-z][\w-]*):[ \t]+([^\s|>].*)")
_BRACKET = re.compile(r"[{}\[\]]")
_LONGEST = 64 * 1_024
_DEEPEST = 50
_KNOWN = frozenset({"name", "description", "license", "compatibility", "metadata", "allowed-tools"})

Fields = dict[str, "Node"]


@dataclass(frozen=True, slots=True)
class SkillFile:
    """What a SKILL.md says."""

    metadata: SkillMetadata
    instructions: str
    problems: Sequence[str] = ()
    """What had to be put right or passed over to read it."""
    unknown: Sequence[str] = ()
    """Fields that the Agent Skills specification doesn't have."""


def read_skill_file(text: str, *, default_name: str) -> SkillFile:
    """Read the text of a SKILL.md. Raises `SkillError` if it tells no skill.

    Without a name the skill gets `default_name`.
    """
    head, body = _split(text)
    if len(head) > _LONGEST:
        raise SkillError(f"its frontmatter has {len(head)} characters, {_LONGEST} are allowed")
    reading = _Reading()
    fields = reading.fields(head)
    return SkillFile(
        metadata=reading.metadata(fields, default_name),
        instructions=body.strip(),
        problems=tuple(reading.problems),
        unknown=tuple(sorted(fields.keys() - _KNOWN)),
    )


def instructions_of(text: str) -> str:
    """What stands behind the frontmatter. Raises `SkillError` if there is none."""
    return _split(text)[1].strip()


def _split(text: str) -> tuple[str, str]:
    plain = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    found = _WHOLE.match(plain.lstrip("\n"))
    if found is None:
        raise SkillError("it must begin with frontmatter: YAML between two lines of '---'")
    return found[1], found[2] or ""


@dataclass(slots=True)
class _Reading:
    """One frontmatter as it is read, and what is wrong with it."""

    problems: list[str] = field(default_factory=list[str])

    def fields(self, head: str) -> Fields:
        """The fields on the top level. Raises `SkillError` if it isn't YAML, even with quotes."""
        try:
            root = _compose(head)
        except SkillError as error:
            quoted = "\n".join(map(_quote, head.split("\n")))
            try:
                root = _compose(quoted)
            except SkillError:
                raise error from None
            self.problems.append(f"{error}; read as if the values were quoted")
        return self._entries(root, "the frontmatter")

    def metadata(self, fields: Fields, default_name: str) -> SkillMetadata:
        name = one_line(self._text(fields, "name") or "")
        if not name:
            self.problems.append(f"it has no name; its directory's is taken, {default_name!r}")
        description = (self._text(fields, "description") or "").strip()
        if not description:
            raise SkillError("its frontmatter has no description: say what the skill is for")
        return SkillMetadata(
            name=name or one_line(default_name),
            description=description,
            license=self._text(fields, "license"),
            compatibility=self._text(fields, "compatibility"),
            metadata=dict(self._notes(fields)),
        )

    def _entries(self, node: Node | None, where: str) -> Fields:
        from yaml import MappingNode, ScalarNode

        if not isinstance(node, MappingNode):
            self.problems.append(f"{where} is not a list of fields: 'name: value' is expected")
            return {}
        entries: Fields = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self.problems.append(f"{where} has a field whose name is no text")
            elif key.value in entries:
                self.problems.append(f"{where} has {key.value!r} twice; the first counts")
            else:
                entries[key.value] = value
        return entries

    def _text(self, fields: Fields, name: str) -> str | None:
        from yaml import ScalarNode

        node = fields.get(name)
        if node is None or _is_null(node):
            return None
        if isinstance(node, ScalarNode):
            return str(node.value)
        self.problems.append(f"{name} is not a text; passed over")
        return None

    def _notes(self, fields: Fields) -> Iterator[tuple[str, str]]:
        if (node := fields.get("metadata")) is None or _is_null(node):
            return
        entries = self._entries(node, "metadata")
        for name in entries:
            if (text := self._text(entries, name)) is not None:
                yield name, text


def _check_nesting(head: str) -> None:
    """Refuse what takes PyYAML a time that is quadratic in it."""
    depth = 0
    for bracket in _BRACKET.findall(head):
        depth = depth + 1 if bracket in "{[" else max(0, depth - 1)
        if depth > _DEEPEST:
            raise SkillError(
                f"its frontmatter is not YAML for a skill: brackets stand more than {_DEEPEST} deep"
            )


def _compose(head: str) -> Node | None:
    _check_nesting(head)
    try:
        import yaml
    except ImportError as error:
        raise SkillError(
            "a SKILL.md is read with PyYAML, which is not installed: "
            "pip install 'context-actor[skills]'"
        ) from error
    try:
        return yaml.compose(head, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 2}: " if error.problem_mark else ""
        raise SkillError(f"its frontmatter is not YAML: {line}{error.problem}") from error
    # Besides its own errors, PyYAML lets through what numbers in escapes and deep nesting cause.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise SkillError(f"its frontmatter is not YAML: {one_line(str(error))}") from error


def _is_null(node: Node) -> bool:
    return str(node.tag) == "tag:yaml.org,2002:null"


def _quote(line: str) -> str:
    """`name: value` with the value in quotes, which many forget when it has a colon."""
    found = _PLAIN_FIELD.fullmatch(line.rstrip())
    if found is None or found[2][0] in "\"'":
        return line
    return f"{found[1]}: '{found[2].replace(chr(39), chr(39) * 2)}'"
