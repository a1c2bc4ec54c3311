"""`/v1/models`: the names that requests may use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from agent_context.service.errors import Problem, ServiceError
from agent_context.service.responses import Json
from agent_context.service.service import Reader, Running, Service

__all__ = ["router"]

router = APIRouter(tags=["openai"])


@router.get("/v1/models")
@router.get("/c/{conversation_id}/v1/models", include_in_schema=False)
async def list_models(service: Running, _: Reader) -> Response:
    """Every model, the default first; in the forms of OpenAI and Anthropic at once."""
    names = service.catalog.names
    data = [_model(service, name) for name in names]
    page = {"has_more": False, "first_id": names[0], "last_id": names[-1]}
    return Json({"object": "list", "data": data, **page})


@router.get("/v1/models/{model:path}")
@router.get("/c/{conversation_id}/v1/models/{model:path}", include_in_schema=False)
async def get_model(model: str, service: Running, _: Reader) -> Response:
    """One model."""
    if service.catalog.find(model) is None:
        text = f"there is no model {model!r}"
        raise ServiceError(Problem(status=404, message=text, code="model_not_found", param="model"))
    return Json(_model(service, model))


def _model(service: Service, name: str) -> dict[str, Any]:
    route = service.catalog.route(name)
    facts = route.backend.model_facts(route.model)
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": route.backend.vendor,
        "context_window": facts.context_window,
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": facts.context_window,
        "max_tokens": facts.max_output,
    }
