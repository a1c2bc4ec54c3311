"""Conversations in one SQLite file."""

from agent_context.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
