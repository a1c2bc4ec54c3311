"""What all tests share: no actor outlives its test, async tests run on asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pykka
import pytest
from hypothesis import HealthCheck, settings

# How fast examples come says something of the machine, and nothing of what is tested.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_actor_outlives_its_test() -> Iterator[None]:
    yield
    pykka.ActorRegistry.stop_all(timeout=10)
