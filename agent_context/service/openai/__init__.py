"""The API of OpenAI: chat completions, responses, conversations and models."""

from agent_context.service.openai.chat import router as chat_router
from agent_context.service.openai.conversations import router as conversations_router
from agent_context.service.openai.models import router as models_router
from agent_context.service.openai.responses import router as responses_router

__all__ = ["routers"]

routers = (models_router, chat_router, conversations_router, responses_router)
