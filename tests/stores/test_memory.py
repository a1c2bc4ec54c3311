"""The contract suite, run on the store that keeps nothing."""

from agent_context.stores.memory import MemoryStore
from agent_context.stores.store import Store
from agent_context.testing import StoreContract


class TestMemory(StoreContract):
    def make_store(self) -> Store:
        return MemoryStore()
