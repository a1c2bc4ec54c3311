"""Contexts of LLM conversations, each owned by an actor."""

import importlib as _importlib
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from agent_context._actor import AgentContext
    from agent_context.agent import Agent, AgentResponse
    from agent_context.backend import ContextBackend
    from agent_context.compression import SlidingWindow, Summarize, TokenBudget
    from agent_context.errors import AgentContextError, BackendError, ContextFull, ErrorKind
    from agent_context.events import ChangeEvent
    from agent_context.host import Host
    from agent_context.messages import Completion, FinishReason, Message, Role, ToolCall, Usage
    from agent_context.options import SendOptions
    from agent_context.protocol import (
        Append,
        Cancel,
        Compress,
        EstimateTokens,
        Extend,
        Fork,
        FromJsonl,
        Incremental,
        Messages,
        Send,
        SendStream,
        Subscribe,
        ToJsonl,
    )
    from agent_context.providers import ContextProvider, HistoryProvider
    from agent_context.ref import ContextRef
    from agent_context.sessions import AgentSession
    from agent_context.stream import Stream
    from agent_context.stream_events import (
        Finished,
        ReasoningDelta,
        StreamEvent,
        TextDelta,
        ToolCallDelta,
    )
    from agent_context.tools import Tool, tool

__all__ = [
    "Agent",
    "AgentContext",
    "AgentContextError",
    "AgentResponse",
    "AgentSession",
    "Append",
    "BackendError",
    "Cancel",
    "ChangeEvent",
    "Completion",
    "Compress",
    "ContextBackend",
    "ContextFull",
    "ContextProvider",
    "ContextRef",
    "ErrorKind",
    "EstimateTokens",
    "Extend",
    "FinishReason",
    "Finished",
    "Fork",
    "FromJsonl",
    "HistoryProvider",
    "Host",
    "Incremental",
    "Message",
    "Messages",
    "ReasoningDelta",
    "Role",
    "Send",
    "SendOptions",
    "SendStream",
    "SlidingWindow",
    "Stream",
    "StreamEvent",
    "Subscribe",
    "Summarize",
    "TextDelta",
    "ToJsonl",
    "TokenBudget",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "tool",
]

_NAMES = {
    "_actor": ("AgentContext",),
    "agent": (
        "Agent",
        "AgentResponse",
    ),
    "backend": ("ContextBackend",),
    "compression": (
        "SlidingWindow",
        "Summarize",
        "TokenBudget",
    ),
    "errors": (
        "AgentContextError",
        "BackendError",
        "ContextFull",
        "ErrorKind",
    ),
    "events": ("ChangeEvent",),
    "host": ("Host",),
    "messages": (
        "Completion",
        "FinishReason",
        "Message",
        "Role",
        "ToolCall",
        "Usage",
    ),
    "options": ("SendOptions",),
    "protocol": (
        "Append",
        "Cancel",
        "Compress",
        "EstimateTokens",
        "Extend",
        "Fork",
        "FromJsonl",
        "Incremental",
        "Messages",
        "Send",
        "SendStream",
        "Subscribe",
        "ToJsonl",
    ),
    "providers": (
        "ContextProvider",
        "HistoryProvider",
    ),
    "ref": ("ContextRef",),
    "sessions": ("AgentSession",),
    "stream": ("Stream",),
    "stream_events": (
        "Finished",
        "ReasoningDelta",
        "StreamEvent",
        "TextDelta",
        "ToolCallDelta",
    ),
    "tools": (
        "Tool",
        "tool",
    ),
}
"""Where the names above live. They are imported when they are used, so that a command that needs
none of them starts at once."""

_HOME_OF = {name: home for home, names in _NAMES.items() for name in names}

_HOMES = (
    "protocol",
    "providers",
    "compression",
    "models",
    "backend",
    "prompt_cache",
    "host",
    "agent",
)


def __getattr__(name: str) -> object:
    """A name of the front door, a module, or what stood here in version 0.1."""
    if name in _HOME_OF:
        value = getattr(_importlib.import_module(f"agent_context.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        if _find_spec(f"agent_context.{name}") is not None:
            return _importlib.import_module(f"agent_context.{name}")
        for home in _HOMES:
            module = _importlib.import_module(f"agent_context.{home}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
