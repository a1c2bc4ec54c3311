"""The configuration of a conversation, as started or changed since. Forks share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agent_context._validation import check_callback, check_type
from agent_context.backend import ContextBackend
from agent_context.compression.hook import CompressionHook
from agent_context.compression.pipeline import default_strategy
from agent_context.compression.recall import Recall, find_recall
from agent_context.compression.strategy import Strategy
from agent_context.events import ChangeEvent
from agent_context.messages import Message
from agent_context.options import SendOptions

__all__ = ["ActorConfig", "ConversationConfig"]


# One for all conversations that are started without their own.
_NO_OPTIONS = SendOptions()
_DEFAULT_STRATEGY = default_strategy()


@dataclass(frozen=True, slots=True)
class ActorConfig:
    """The model, the usual options, and how to compress."""

    backend: ContextBackend
    options: SendOptions
    strategy: Strategy
    hook: CompressionHook | None

    @staticmethod
    def of(
        backend: ContextBackend,
        options: SendOptions | None,
        strategy: Strategy | None,
        hook: CompressionHook | None,
    ) -> ActorConfig:
        """The config, with the defaults for None. Raises `UsageError`."""
        if hook is not None:
            check_callback("on_compressed", hook)
        return ActorConfig(
            check_type("backend", backend, ContextBackend),
            check_type("options", options or _NO_OPTIONS, SendOptions),
            check_type("compression", strategy or _DEFAULT_STRATEGY, Strategy),
            hook,
        )

    @property
    def recall(self) -> Recall | None:
        """How older messages are sent again; None if they aren't."""
        return find_recall(self.strategy)

    def using(self, backend: ContextBackend, options: SendOptions) -> ActorConfig:
        """The same with another backend; default options of the previous model are dropped."""
        meant: dict[str, object] = {"model": None, "context_window": None, "extra": {}}
        usual = options.merged_over(self.options.model_copy(update=meant))
        return replace(self, backend=backend, options=usual)


@dataclass(frozen=True, slots=True)
class ConversationConfig:
    """The arguments of `AgentContext.start`."""

    backend: ContextBackend
    options: SendOptions | None = None
    immutable: Sequence[Message] = ()
    compression: Strategy | None = None
    on_compressed: CompressionHook | None = None
    on_change: Callable[[ChangeEvent], object] | None = None

    def actor_config(self) -> ActorConfig:
        """The part that holds as long as the conversation runs. Raises `UsageError`."""
        if self.on_change is not None:
            check_callback("on_change", self.on_change)
        return ActorConfig.of(self.backend, self.options, self.compression, self.on_compressed)
