"""A PostgreSQL for tests: the one that is named, or the machine's own, or one that is started."""

from __future__ import annotations

import atexit
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from agent_context.stores.postgres import PostgresStore
from tests.support.postgres_server import PostgresServer, programs

PLACES = ("postgresql:///test", "postgresql://postgres@127.0.0.1:5432/test")

Admin = psycopg.Connection[tuple[Any, ...]]


@cache
def place() -> str:
    """How to reach the server that all tests share."""
    given = os.environ.get("AGENT_CONTEXT_TEST_POSTGRES")
    for dsn in [given] if given else PLACES:
        with suppress(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=3).close()
            return dsn
    if given:
        pytest.fail(f"AGENT_CONTEXT_TEST_POSTGRES: {given} can't be reached")
    server = PostgresServer(installed())
    server.start()
    atexit.register(server.stop)
    return server.dsn


def installed() -> Path:
    """Where a server is installed: not everybody has one, but whoever releases this must."""
    found = programs()
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("no PostgreSQL is installed")
    return found or pytest.skip("no PostgreSQL is installed")


@contextmanager
def new_schema(admin: Admin) -> Generator[str]:
    """The name of a schema that is not there yet, and not any more at the end."""
    name = f"test_{uuid4().hex[:12]}"
    yield name
    admin.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name)))


@contextmanager
def new_store() -> Generator[PostgresStore]:
    """A store with nothing in it."""
    with psycopg.connect(place(), autocommit=True) as admin, new_schema(admin) as schema:
        store = PostgresStore(place(), schema=schema)
        try:
            yield store
        finally:
            store.close()
