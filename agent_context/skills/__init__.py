"""Agent skills: directories with instructions, documents and scripts that a model loads at need."""

from agent_context.skills.metadata import SkillMetadata
from agent_context.skills.runner import SubprocessScriptRunner
from agent_context.skills.scan import ScanResult, SkillDiagnostic, scan
from agent_context.skills.scripts import Script, ScriptResult, SkillScriptRunner
from agent_context.skills.skill import AgentSkill

__all__ = [
    "AgentSkill",
    "ScanResult",
    "Script",
    "ScriptResult",
    "SkillDiagnostic",
    "SkillMetadata",
    "SkillScriptRunner",
    "SubprocessScriptRunner",
    "scan",
]
