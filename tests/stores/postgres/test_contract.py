"""PostgreSQL keeps what every store promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent_context.stores.store import Store
from agent_context.testing import StoreContract
from tests.stores.postgres.conftest import OpenStore


class TestPostgres(StoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, open_store: OpenStore, new_schema: Callable[[], str]) -> None:
        self._open = open_store
        self._new_schema = new_schema

    def make_store(self) -> Store:
        self._schema = self._new_schema()
        return self._open(schema=self._schema)

    def reopen(self, store: Store) -> Store:
        store.close()
        return self._open(schema=self._schema)
