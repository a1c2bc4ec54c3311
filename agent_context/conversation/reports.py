"""What the jobs of a conversation tell it."""

from __future__ import annotations

from agent_context.conversation.compressions import CompressionEnded, CompressionOverdue
from agent_context.conversation.journal import Lost
from agent_context.conversation.keys import LookedUp
from agent_context.conversation.turn import (
    PrefixLost,
    RoundEnded,
    SwapWanted,
    TurnEnded,
    TurnOverdue,
)
from agent_context.ref import Abandoned

__all__ = ["Report"]

Report = (
    TurnEnded
    | TurnOverdue
    | SwapWanted
    | RoundEnded
    | PrefixLost
    | Abandoned
    | CompressionEnded
    | CompressionOverdue
    | LookedUp
    | Lost
)
