"""The API of Anthropic: messages, and how many tokens they take."""

from agent_context.service.anthropic.messages import router

__all__ = ["routers"]

routers = (router,)
