"""Skills for an agent: their names and purposes at once, all else when the model asks for it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from agent_context._validation import check_type
from agent_context.messages import Message
from agent_context.options import SendOptions
from agent_context.providers.provider import AgentLike, ContextProvider, ContextResult
from agent_context.providers.skill_tools import Visible, load_tool, resource_tool, script_tool
from agent_context.sessions.session import AgentSession
from agent_context.skills import AgentSkill, SkillDiagnostic, SkillScriptRunner, scan
from agent_context.skills.metadata import one_line
from agent_context.tools import ApprovalPolicy, CallableTool

__all__ = ["AgentSkillsProvider", "SkillsProvider"]

logger = logging.getLogger(__name__)

_HEADING = """## Available Skills

Use load_skill(name) to get full instructions for any skill listed below.
"""
_LONGEST_DESCRIPTION = 4_096


class SkillsProvider(ContextProvider):
    """Tells the model which skills there are, and gives it the tools to use them.

    Frozen: each `with_…` returns another provider. Of two skills with one name, in whatever case,
    the first stays. What a skill told the model is protected from compressions while it is in use.
    """

    kind = "skills"

    def __init__(
        self,
        skills: Iterable[AgentSkill] = (),
        *,
        script_runner: SkillScriptRunner | None = None,
        script_approval: ApprovalPolicy = "require",
        source_id: str = "AgentSkillsProvider",
        diagnostics: Iterable[SkillDiagnostic] = (),
    ) -> None:
        """Without a `script_runner` no script runs; `script_approval` is who must allow one."""
        super().__init__(source_id)
        self._runner = script_runner
        self._approval: ApprovalPolicy = script_approval
        kept: dict[str, AgentSkill] = {}
        found = list(diagnostics)
        for skill in skills:
            first = kept.setdefault(check_type("skill", skill, AgentSkill).name.casefold(), skill)
            if first is not skill:
                found.append(_duplicate(skill, first))
        self._by_name: Mapping[str, AgentSkill] = kept
        self.diagnostics: tuple[SkillDiagnostic, ...] = tuple(found)
        """Which skills were left out and why, and what was borne with in the others."""

    @classmethod
    def scan(cls, root: str | os.PathLike[str], *, strict: bool = False) -> Self:
        """With every skill in a directory of skills. Raises `SkillError` if it can't be listed.

        A skill that can't be read is left out and told in `diagnostics`.
        """
        return cls.scan_dirs([root], strict=strict)

    @classmethod
    def scan_dirs(cls, roots: Iterable[str | os.PathLike[str]], *, strict: bool = False) -> Self:
        """With the skills of several directories, in order."""
        scans = [scan(root, strict=strict) for root in roots]
        return cls(
            [skill for found in scans for skill in found.skills],
            diagnostics=[item for found in scans for item in found.diagnostics],
        )

    @property
    def skills(self) -> tuple[AgentSkill, ...]:
        """The skills, in the order in which they were given."""
        return tuple(self._by_name.values())

    def with_skill(self, skill: AgentSkill) -> Self:
        """With one skill more."""
        return self.with_skills([skill])

    def with_skills(self, skills: Iterable[AgentSkill]) -> Self:
        """With more skills, such as another provider's."""
        return self._like([*self.skills, *skills], self._runner, self._approval)

    def with_script_runner(
        self, runner: SkillScriptRunner, *, approval: ApprovalPolicy = "require"
    ) -> Self:
        """With `run_skill_script`, each call of which must be approved unless `approval` says no.

        `SubprocessScriptRunner` is one that ships.
        """
        return self._like(self.skills, check_type("runner", runner, SkillScriptRunner), approval)

    def _like(
        self,
        skills: Sequence[AgentSkill],
        runner: SkillScriptRunner | None,
        approval: ApprovalPolicy,
    ) -> Self:
        return type(self)(
            skills,
            script_runner=runner,
            script_approval=approval,
            source_id=self.source_id,
            diagnostics=self.diagnostics,
        )

    def build_advertise(self) -> str:
        """What stands in the instructions: a line or a few for each skill, sorted by name."""
        ordered = sorted(self.skills, key=lambda skill: skill.name)
        return "\n".join([_HEADING, *(line for skill in ordered for line in self._lines(skill))])

    def _lines(self, skill: AgentSkill) -> list[str]:
        description = one_line(skill.metadata.description)
        if len(description) > _LONGEST_DESCRIPTION:
            description = f"{description[:_LONGEST_DESCRIPTION]}…"
        name = skill.name.replace("\\", "\\\\").replace('"', '\\"')
        lines = [f"- **{skill.name}**: {description}"]
        if skill.has_resources():
            lines.append(
                f'  Resources: use read_skill_resource("{name}", "<path>") '
                "to read reference documents."
            )
        if self._runs_scripts(skill):
            lines.append(
                f'  Scripts: use run_skill_script("{name}", "<path>") to execute bundled scripts.'
            )
        return lines

    def _runs_scripts(self, skill: AgentSkill) -> bool:
        return self._runner is not None and skill.has_scripts()

    def build_tools(self, visible: Visible | None = None) -> tuple[CallableTool, ...]:
        """The tools that these skills need.

        With `visible`, the messages that the model sees at the time of a call, `load_skill` only
        notes that a skill is loaded as long as its instructions are among them.
        """
        tools = [load_tool(self._by_name, visible)]
        if any(skill.has_resources() for skill in self.skills):
            tools.append(resource_tool(self._by_name))
        if self._runner is not None and any(map(self._runs_scripts, self.skills)):
            tools.append(script_tool(self._by_name, self._runner, self._approval))
        return tuple(tools)

    async def on_invoking(
        self,
        agent: AgentLike,
        session: AgentSession | None,
        messages: Sequence[Message],
        options: SendOptions,
    ) -> ContextResult:
        """The list of skills and their tools; nothing if there are no skills."""
        del agent, messages, options
        if not self.skills:
            return ContextResult()
        visible = None if session is None else session.get_visible
        return ContextResult(instructions=self.build_advertise(), tools=self.build_tools(visible))


AgentSkillsProvider = SkillsProvider


def _duplicate(skill: AgentSkill, first: AgentSkill) -> SkillDiagnostic:
    text = f"a skill of this name came before it, from {first.root_dir or 'the program'}"
    where = str(skill.root_dir or skill.name)
    logger.warning("skills: %s: %s; left out", where, text)
    return SkillDiagnostic(where, f"{text}; left out")
