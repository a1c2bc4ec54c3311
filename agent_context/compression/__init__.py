"""Making a history smaller without losing or orphaning anything.

A strategy is a pure plan. It is carried out beside the conversation, which applies the result if
the messages that the plan was made for haven't changed.
"""

from agent_context.compression.pinning import pin
from agent_context.compression.pipeline import Pipeline, default_strategy
from agent_context.compression.recall import Recall
from agent_context.compression.report import CompressionReport, ZoneTokens
from agent_context.compression.strategy import CompressionPlan, PlanningView, Strategy
from agent_context.compression.summarize import Summarize
from agent_context.compression.truncation import EvictToolResults, SlidingWindow, TokenBudget

__all__ = [
    "CompressionPlan",
    "CompressionReport",
    "EvictToolResults",
    "Pipeline",
    "PlanningView",
    "Recall",
    "SlidingWindow",
    "Strategy",
    "Summarize",
    "TokenBudget",
    "ZoneTokens",
    "default_strategy",
    "pin",
]
