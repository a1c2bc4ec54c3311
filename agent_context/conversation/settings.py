"""What a conversation is started with and never changes. Forks share it."""

from __future__ import annotations

from dataclasses import dataclass

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
