"""Agent skills: directories with instructions, documents and scripts that a model loads at need."""

from agent_context.skills.metadata import SkillMetadata
from agent_context.skills.runner import SubprocessScriptRunner
from agent_context.skills.scan import Diagnostic, Scan, scan
from agent_context.skills.scripts import Script, ScriptResult, SkillScriptRunner
from agent_context.skills.skill import AgentSkill

__all__ = [
    "AgentSkill",
    "Diagnostic",
    "Scan",
    "Script",
    "ScriptResult",
    "SkillMetadata",
    "SkillScriptRunner",
    "SubprocessScriptRunner",
    "scan",
]
