"""The tools by which a model loads skills, reads their documents and runs their scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from agent_context.compression import pin
from agent_context.errors import AgentContextError, SkillError, ToolError
from agent_context.messages import Message
from agent_context.skills import AgentSkill, SkillScriptRunner, SubprocessScriptRunner
from agent_context.tools import ApprovalPolicy, CallableTool, ToolContext
from agent_context.tools.arguments import normalize_arguments, read_arguments

__all__ = ["Visible", "load_tool", "lookup", "resource_tool", "script_tool"]

Visible = Callable[[], Awaitable[Iterable[Message]]]
"""Gives the messages that the model sees now."""

_WHY = "skill"
_SHOWN = 100
_WHOLE = 2_000_000
_GRACE = 5.0

T = TypeVar("T")


class _Arguments(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")


class _Load(_Arguments):
    skill_name: str = Field(validation_alias=AliasChoices("skill_name", "name"))


class _Read(_Arguments):
    # Models mix the tools' arguments up: what can only mean one thing is taken.
    name: str = Field(validation_alias=AliasChoices("name", "skill_name"))
    path: str = Field(validation_alias=AliasChoices("path", "resource_name", "script_name"))


class _Run(_Read):
    args: tuple[str, ...] = ()


class _SkillTool(CallableTool):
    """A tool whose arguments are read by a model, and whose work is a function of them."""

    takes: type[_Arguments] = Field(exclude=True, repr=False)
    work: Callable[[Any], Awaitable[object]] = Field(exclude=True, repr=False)

    def normalize(self, arguments: str) -> str:
        """The arguments, if they have the names and types that they should."""
        return normalize_arguments(arguments, self.takes, who=self.name)

    async def call(self, arguments: str, context: ToolContext) -> object:
        """Do the work. What is wrong with a skill is told to the model."""
        del context
        try:
            return await self.work(read_arguments(arguments, self.takes, who=self.name))
        except SkillError as error:
            raise ToolError(str(error)) from error


def load_tool(skills: Mapping[str, AgentSkill], visible: Visible | None) -> CallableTool:
    """`load_skill`. With `visible` it doesn't repeat what the model still sees."""

    async def load(asked: _Load) -> object:
        skill = lookup(skills, asked.skill_name)
        text = _json(
            {
                "skill_name": skill.name,
                "instructions": await asyncio.to_thread(skill.load_instructions),
                **_shorten("resources", skill.resource_names),
                **_shorten("scripts", skill.script_names),
            }
        )
        if visible is not None and await _is_seen(visible, skill.name, text):
            note = "Already loaded: an earlier result of load_skill in this conversation has it."
            return _json({"skill_name": skill.name, "note": note})
        return _keep_shown(text, skill.name)

    return _SkillTool(
        name="load_skill",
        description="Load the full instructions of a skill. Do this before you work by it.",
        parameters=_schema({"skill_name": _names(skills)}),
        max_result=_WHOLE,
        takes=_Load,
        work=load,
    )


def resource_tool(skills: Mapping[str, AgentSkill]) -> CallableTool:
    """`read_skill_resource`."""

    async def read(asked: _Read) -> object:
        skill = lookup(skills, asked.name)
        path = skill.resource_name(asked.path)
        content = await asyncio.to_thread(skill.read_resource, path)
        text = _json({"skill_name": skill.name, "path": path, "content": content})
        return _keep_shown(text, f"{skill.name}/{path}")

    return _SkillTool(
        name="read_skill_resource",
        description="Read a document that comes with a skill.",
        parameters=_schema(
            {"name": _names(skills, having=AgentSkill.has_resources), "path": _path("document")}
        ),
        takes=_Read,
        work=read,
    )


def script_tool(
    skills: Mapping[str, AgentSkill], runner: SkillScriptRunner, approval: ApprovalPolicy
) -> CallableTool:
    """`run_skill_script`."""

    async def run(asked: _Run) -> object:
        skill = lookup(skills, asked.name)
        script = await asyncio.to_thread(skill.script, asked.path)
        result = await runner.run(script, asked.args)
        notes: dict[str, object] = {}
        if result.exit_code is None:
            notes["note"] = "killed, because its time was up"
        return _json(
            {
                "skill_name": skill.name,
                "path": script.name,
                "exit_code": result.exit_code,
                "stdout": result.stdout,
                "stderr": result.stderr,
                **notes,
            }
        )

    arguments = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Arguments of the command line, one each.",
    }
    # The runner ends a script by itself: that says more than a tool that was stopped.
    timeout = runner.timeout + _GRACE if isinstance(runner, SubprocessScriptRunner) else None
    return _SkillTool(
        name="run_skill_script",
        description="Run a script that comes with a skill, and get its output.",
        parameters=_schema(
            {
                "name": _names(skills, having=AgentSkill.has_scripts),
                "path": _path("script"),
                "args": arguments,
            },
            optional=("args",),
        ),
        approval=approval,
        timeout=timeout,
        takes=_Run,
        work=run,
    )


def lookup(skills: Mapping[str, AgentSkill], name: str) -> AgentSkill:
    """The skill of this name, in whatever case. Raises `SkillError`."""
    if (skill := skills.get(name.strip().casefold())) is not None:
        return skill
    known = ", ".join(sorted(skill.name for skill in skills.values()))
    raise SkillError(f"Skill '{name}' not found; there are: {known}")


async def _is_seen(visible: Visible, skill: str, text: str) -> bool:
    """Whether the model sees just this: a compression or an edit may have taken it away."""
    try:
        messages = await visible()
    except AgentContextError:
        return False
    return any(
        message.text == text
        and (message.extra.get("protected"), message.extra.get("subject")) == (_WHY, skill)
        for message in messages
    )


def _keep_shown(text: str, subject: str) -> Message:
    return pin(Message.tool("", text), _WHY, subject=subject)


def _json(value: Mapping[str, object]) -> str:
    return orjson.dumps(value).decode()


def _shorten(what: str, names: Sequence[str]) -> dict[str, object]:
    rest = len(names) - _SHOWN
    more = {f"more_{what}": rest} if rest > 0 else {}
    return {what: names[:_SHOWN], **more}


def _names(
    skills: Mapping[str, AgentSkill], *, having: Callable[[AgentSkill], bool] = bool
) -> dict[str, object]:
    names = sorted(skill.name for skill in skills.values() if having(skill))
    return {"type": "string", "enum": names, "description": "The skill's name."}


def _path(what: str) -> dict[str, object]:
    return {"type": "string", "description": f"The {what}'s path, as load_skill lists it."}


def _schema(properties: Mapping[str, object], *, optional: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
