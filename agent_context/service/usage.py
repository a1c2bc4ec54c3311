"""What the turns of a conversation cost, added up from its log."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from agent_context._actor.replay import decode_completion
from agent_context.messages import Usage
from agent_context.service.service import Service
from agent_context.stores.store import Store

__all__ = ["sum_usage"]


async def sum_usage(service: Service, key: str) -> dict[str, Any]:
    """Tokens of all turns, and by model; the turns of a fork's parent are not among them."""
    answers = await asyncio.to_thread(lambda: list(_answers(service.host.store, key)))
    by_model: defaultdict[str, list[Usage]] = defaultdict(list)
    for answer in answers:
        by_model[answer.get("model") or ""].append(Usage.model_validate(answer.get("usage") or {}))
    models = {
        model: {"turns": len(usages), **Usage.total(usages).model_dump()}
        for model, usages in by_model.items()
    }
    total = Usage.total(usage for usages in by_model.values() for usage in usages)
    return {"turns": len(answers), **total.model_dump(), "models": models}


def _answers(store: Store, key: str) -> Iterator[dict[str, Any]]:
    after = 0
    while page := store.entries(key, after=after):
        for entry in page:
            if answer := decode_completion(entry):
                yield answer
        after = page[-1].seq
