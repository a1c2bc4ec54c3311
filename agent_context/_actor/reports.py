"""What the jobs of a conversation tell it."""

from __future__ import annotations

from agent_context._actor.background_compression import CompressionEnded, CompressionOverdue
from agent_context._actor.idempotency import KeyLookedUp
from agent_context._actor.journal import WriteFailed
from agent_context._actor.turn import (
    CompressionReady,
    PrefixChanged,
    RoundFinished,
    TurnEnded,
    TurnTimedOut,
)
from agent_context.ref import AskCancelled

__all__ = ["Report"]

Report = (
    TurnEnded
    | TurnTimedOut
    | CompressionReady
    | RoundFinished
    | PrefixChanged
    | AskCancelled
    | CompressionEnded
    | CompressionOverdue
    | KeyLookedUp
    | WriteFailed
)
