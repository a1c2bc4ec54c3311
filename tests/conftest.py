"""What all tests share: no actor outlives its test, async tests run on asyncio."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pykka
import pytest

from tests.support.examples import load_profile
from tests.support.reports import readable

load_profile()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    return readable((yield))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _no_actor_outlives_its_test() -> Iterator[None]:
    yield
    pykka.ActorRegistry.stop_all(timeout=10)
