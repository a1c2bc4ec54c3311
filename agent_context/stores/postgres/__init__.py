"""Conversations in PostgreSQL, which several processes share (extra `postgres`)."""

from agent_context.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
