"""How a conversation goes, as it was started or told since. Forks share it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent_context.backend import ContextBackend
from agent_context.checks import checked
from agent_context.compression.editor import Editor
from agent_context.compression.pipeline import tiered
from agent_context.compression.strategy import Strategy
from agent_context.options import SendOptions

__all__ = ["Settings"]


# One for all conversations that are started without their own.
_NO_OPTIONS = SendOptions()
_TIERED = tiered()


@dataclass(frozen=True, slots=True)
class Settings:
    """The model, the usual options, and how to compress."""

    backend: ContextBackend
    options: SendOptions
    strategy: Strategy
    editor: Editor | None

    @staticmethod
    def of(
        backend: ContextBackend,
        options: SendOptions | None,
        strategy: Strategy | None,
        editor: Editor | None,
    ) -> Settings:
        """The settings, the usual ones for None. Raises `UsageMistake`."""
        return Settings(
            checked("backend", backend, ContextBackend),
            checked("options", options or _NO_OPTIONS, SendOptions),
            checked("compression", strategy or _TIERED, Strategy),
            editor,
        )

    def using(self, backend: ContextBackend, options: SendOptions) -> Settings:
        """With another backend, and without the usual options that were for the model so far."""
        meant: dict[str, object] = {"model": None, "context_window": None, "extra": {}}
        usual = options.over(self.options.model_copy(update=meant))
        return replace(self, backend=backend, options=usual)
