"""Conversations in PostgreSQL, which several processes share (extra `postgres`)."""

try:
    from agent_context.stores.postgres.store import PostgresStore
except ModuleNotFoundError as error:
    if error.name != "psycopg":
        raise
    raise ModuleNotFoundError(
        "a PostgresStore needs psycopg: pip install 'context-actor[postgres]'", name="psycopg"
    ) from error

__all__ = ["PostgresStore"]
