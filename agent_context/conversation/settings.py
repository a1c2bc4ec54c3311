"""How a conversation goes, as it was started or told since. Forks share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent_context.backend import ContextBackend
from agent_context.checks import checked
from agent_context.compression.editor import Editor
from agent_context.compression.pipeline import tiered
from agent_context.compression.strategy import Strategy
from agent_context.events import ChangeEvent
from agent_context.messages import Message
from agent_context.options import SendOptions

__all__ = ["Settings", "Setup"]


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


@dataclass(frozen=True, slots=True)
class Setup:
    """How a conversation is started: the arguments of `AgentContext.start`."""

    backend: ContextBackend
    options: SendOptions | None = None
    immutable: Sequence[Message] = ()
    compression: Strategy | None = None
    on_compressed: Editor | None = None
    on_change: Callable[[ChangeEvent], object] | None = None

    def settings(self) -> Settings:
        """What of it holds as long as the conversation runs. Raises `UsageMistake`."""
        return Settings.of(self.backend, self.options, self.compression, self.on_compressed)
