"""What all tests share: no actor outlives its test, async tests run on asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pykka
import pytest

from tests.support.examples import load_profile

load_profile()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_actor_outlives_its_test() -> Iterator[None]:
    yield
    pykka.ActorRegistry.stop_all(timeout=10)
