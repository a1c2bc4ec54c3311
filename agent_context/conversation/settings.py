"""How a conversation goes, as it was started or told since. Forks share it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_context.backend import ContextBackend
from agent_context.compression.editor import Editor
from agent_context.compression.strategy import Strategy
from agent_context.options import SendOptions

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The model, the usual options, and how to compress."""

    backend: ContextBackend
    options: SendOptions
    strategy: Strategy
    editor: Editor | None

    def using(self, backend: ContextBackend, options: SendOptions) -> Settings:
        """With another backend, and without the usual options that were for the model so far."""
        meant: dict[str, object] = {"model": None, "context_window": None, "extra": {}}
        usual = options.over(self.options.model_copy(update=meant))
        return replace(self, backend=backend, options=usual)
