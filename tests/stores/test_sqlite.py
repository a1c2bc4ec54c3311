"""The contract suite, run on a file, and what is special about one."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_context.stores.sqlite import SqliteStore
from agent_context.stores.store import Store
from agent_context.testing import StoreContract


class TestSqlite(StoreContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def make_store(self) -> Store:
        return SqliteStore(self.path)

    def reopen(self, store: Store) -> Store:
        store.close()
        return SqliteStore(self.path)
