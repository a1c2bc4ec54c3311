"""What every store must do."""

from __future__ import annotations

from agent_context.testing.store_lifecycle import LifeContract
from agent_context.testing.store_log import LogContract
from agent_context.testing.store_reading import ReadingContract

__all__ = ["StoreContract"]


class StoreContract(LogContract, LifeContract, ReadingContract):
    """The contract. A subclass provides `make_store`, and `reopen` if something outlives it."""
