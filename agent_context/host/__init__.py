"""The conversations of one process: found or made by id, parked when idle, let go of in order."""

from agent_context.conversation.settings import Setup
from agent_context.host.feed import Told
from agent_context.host.host import Host

__all__ = ["Host", "Setup", "Told"]
