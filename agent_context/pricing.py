"""What model calls cost in money: by the facts of their models, else by the package genai-prices.

The package (extra `prices`) brings its prices with it; nothing is downloaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from msgspec import Struct

from agent_context.messages import Cost, TurnUsage, Usage
from agent_context.models import ModelFacts

__all__ = ["ModelCallUsage", "are_prices_loaded", "cost_of", "total_usage"]

logger = logging.getLogger(__name__)

_PACKAGE: Final = "genai_prices"
_PROVIDERS: Final = {"kimi": "moonshotai", "zhipu": "zai"}
"""What the package calls vendors that have another name here."""
_MILLION: Final = 1_000_000


class ModelCallUsage(Struct, frozen=True):
    """What one call of a model used."""

    vendor: str
    model: str
    facts: ModelFacts
    usage: Usage


def total_usage(calls: Iterable[ModelCallUsage]) -> TurnUsage:
    """What calls used and cost together; no cost if that of one isn't known."""
    several = tuple(calls)
    costs = [cost_of(call) for call in several]
    known = [cost for cost in costs if cost is not None]
    currencies = {cost.currency for cost in known}
    cost = None
    if len(known) == len(costs) and len(currencies) == 1:
        cost = Cost(amount=sum(each.amount for each in known), currency=currencies.pop())
    return TurnUsage(
        calls=len(several), usage=Usage.total(call.usage for call in several), cost=cost
    )


def cost_of(call: ModelCallUsage) -> Cost | None:
    """What a call cost; None if no price is known, or the vendor reported no usage."""
    usage, facts = call.usage, call.facts
    if usage.input_tokens is None:
        return None
    input_cost = _own_input_cost(usage, facts)
    output_cost = _own_output_cost(usage, facts)
    currency = facts.cache.currency if facts.cache is not None else "USD"
    if input_cost is None or output_cost is None:
        if currency != "USD":
            return None
        listed = _listed_costs(call)
        if listed is None:
            return None
        input_cost = listed[0] if input_cost is None else input_cost
        output_cost = listed[1] if output_cost is None else output_cost
    return Cost(amount=input_cost + output_cost, currency=currency)


def are_prices_loaded() -> bool:
    """Whether `cost_of` answers at once: loading the package takes a tenth of a second."""
    return _PACKAGE in sys.modules or not _is_installed()


def _own_input_cost(usage: Usage, facts: ModelFacts) -> float | None:
    policy = facts.cache
    if policy is None or policy.price is None:
        return None
    cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    tokens = (usage.input_tokens or 0) - policy.tokens_saved(cached, written)
    return tokens * policy.price / _MILLION


def _own_output_cost(usage: Usage, facts: ModelFacts) -> float | None:
    if not usage.output_tokens:
        return 0.0
    return (
        None if facts.output_price is None else usage.output_tokens * facts.output_price / _MILLION
    )


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec(_PACKAGE) is not None


def _listed_costs(call: ModelCallUsage) -> tuple[float, float] | None:
    """What the package says of input and output, in US dollars."""
    if not _is_installed():
        return None
    usage = call.usage
    try:
        prices: Any = importlib.import_module(_PACKAGE)
        told = prices.calc_price(
            prices.Usage(
                input_tokens=usage.input_tokens or 0,
                cache_read_tokens=usage.cached_tokens or 0,
                cache_write_tokens=usage.cache_write_tokens or 0,
                output_tokens=usage.output_tokens or 0,
            ),
            call.model,
            provider_id=_PROVIDERS.get(call.vendor, call.vendor),
        )
        return float(told.input_price), float(told.output_price)
    except LookupError:
        return None  # it doesn't know the model
    except Exception as error:  # noqa: BLE001 - a package of others: no price is no reason to fail
        logger.warning("no price of %s: %s: %s", call.model, type(error).__name__, error)
        return None
