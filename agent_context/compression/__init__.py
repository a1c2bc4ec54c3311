"""Making a history smaller without losing or orphaning anything.

A strategy plans, purely; `run` carries a plan out beside the conversation, and the conversation
swaps the result in if what the plan was made for is still there.
"""

from agent_context.compression.drop import EvictToolResults, SlidingWindow, TokenBudget
from agent_context.compression.pipeline import Pipeline, tiered
from agent_context.compression.protection import protected
from agent_context.compression.report import CompressionReport, ZoneTokens
from agent_context.compression.strategy import Plan, Strategy, View
from agent_context.compression.summarize import Summarize

__all__ = [
    "CompressionReport",
    "EvictToolResults",
    "Pipeline",
    "Plan",
    "SlidingWindow",
    "Strategy",
    "Summarize",
    "TokenBudget",
    "View",
    "ZoneTokens",
    "protected",
    "tiered",
]
