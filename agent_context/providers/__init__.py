"""What stands around a run: the seam to context providers, their chain, and those that ship."""

from agent_context.providers.clock import ClockProvider
from agent_context.providers.compression import CompressionProvider, ModelTokenCounter
from agent_context.providers.context import ContextResult, SessionContext
from agent_context.providers.documents import DocumentsProvider
from agent_context.providers.file_history import FileHistoryProvider
from agent_context.providers.history import (
    BaseHistoryProvider,
    HistoryProvider,
    InMemoryHistoryProvider,
)
from agent_context.providers.provider import AgentLike, BaseContextProvider, ContextProvider
from agent_context.providers.recall import RecallProvider
from agent_context.providers.skills import AgentSkillsProvider, SkillsProvider
from agent_context.providers.sqlite_history import SqliteHistoryProvider
from agent_context.providers.workspace import WorkspaceProvider

__all__ = [
    "AgentLike",
    "AgentSkillsProvider",
    "BaseContextProvider",
    "BaseHistoryProvider",
    "ClockProvider",
    "CompressionProvider",
    "ContextProvider",
    "ContextResult",
    "DocumentsProvider",
    "FileHistoryProvider",
    "HistoryProvider",
    "InMemoryHistoryProvider",
    "ModelTokenCounter",
    "RecallProvider",
    "SessionContext",
    "SkillsProvider",
    "SqliteHistoryProvider",
    "WorkspaceProvider",
]
