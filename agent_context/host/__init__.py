"""The conversations of one process: found or created by id, parked when idle, closed in order."""

from agent_context._actor.config import ConversationConfig
from agent_context.host.change_feed import FeedChange
from agent_context.host.host import Host
from agent_context.host.usage import UsageTotals

__all__ = ["ConversationConfig", "FeedChange", "Host", "UsageTotals"]
