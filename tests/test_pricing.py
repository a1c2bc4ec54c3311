"""Prices come from a model's facts, else from a package, else they are not known."""

from __future__ import annotations

import pytest

from agent_context.messages import Usage
from agent_context.models import CachePolicy, ModelFacts
from agent_context.pricing import ModelCallUsage, are_prices_loaded, cost_of, total_usage

USAGE = Usage(input_tokens=1_000, cached_tokens=400, output_tokens=100)


def call(
    model: str,
    vendor: str = "openai",
    *,
    price: float | None = None,
    output: float | None = None,
    currency: str = "USD",
) -> ModelCallUsage:
    policy = CachePolicy(ratio=0.5, price=price, currency=currency)
    facts = ModelFacts(context_window=1, max_output=1, cache=policy, output_price=output)
    return ModelCallUsage(vendor, model, facts, USAGE)


def test_the_facts_of_a_model_come_first() -> None:
    cost = cost_of(call("gpt-4o", price=10.0, output=20.0))

    assert cost is not None
    assert cost.amount == pytest.approx((600 + 200) * 10 / 1e6 + 100 * 20 / 1e6)


def test_a_model_without_prices_has_those_of_the_package() -> None:
    """gpt-4o: 2.50 dollars in, 1.25 cached, 10 out, for a million tokens (2026-11)."""
    cost = cost_of(call("gpt-4o"))

    assert cost is not None
    assert cost.amount == pytest.approx((600 * 2.5 + 400 * 1.25 + 100 * 10) / 1e6)
    assert are_prices_loaded()


def test_what_the_facts_leave_out_the_package_adds() -> None:
    cost = cost_of(call("gpt-4o", price=10.0))

    assert cost is not None
    assert cost.amount == pytest.approx((600 + 200) * 10 / 1e6 + 100 * 10 / 1e6)


@pytest.mark.parametrize(
    "unknown", [call("no-such-model"), call("gpt-4o", "no-such-vendor"), call("x", currency="CNY")]
)
def test_a_price_that_nobody_knows_is_none(unknown: ModelCallUsage) -> None:
    assert cost_of(unknown) is None


def test_a_call_without_usage_has_no_price() -> None:
    assert cost_of(ModelCallUsage("openai", "gpt-4o", call("gpt-4o").facts, Usage())) is None


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    known = call("m", price=1.0, output=1.0)

    both = total_usage([known, known])

    assert both.cost is not None
    assert both.cost.amount == pytest.approx(2 * (800 + 100) / 1e6)
    assert total_usage([known, call("no-such-model")]).cost is None
    assert total_usage([known, call("m", price=1.0, output=1.0, currency="CNY")]).cost is None
    assert both.usage.input_tokens == 2_000
