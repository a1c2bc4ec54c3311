"""What stands around a run: the seam to context providers, their chain, and those that ship."""

from agent_context.providers.provider import (
    BaseContextProvider,
    ContextProvider,
    ContextResult,
    SessionContext,
)
from agent_context.providers.skills import AgentSkillsProvider, SkillsProvider

__all__ = [
    "AgentSkillsProvider",
    "BaseContextProvider",
    "ContextProvider",
    "ContextResult",
    "SessionContext",
    "SkillsProvider",
]
