"""What stands around a run: the seam to context providers, their chain, and those that ship."""

from agent_context.providers.provider import (
    BaseContextProvider,
    ContextProvider,
    ContextResult,
    SessionContext,
)

__all__ = [
    "BaseContextProvider",
    "ContextProvider",
    "ContextResult",
    "SessionContext",
]
