"""A schema of its own for each test, on whatever server there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from agent_context.stores.postgres import PostgresStore
from tests.support.postgres_server import PostgresServer, programs
from tests.support.proxy import Proxy

PLACES = ("postgresql:///test", "postgresql://postgres@127.0.0.1:5432/test")

Admin = psycopg.Connection[tuple[Any, ...]]


class OpenStore(Protocol):
    def __call__(self, other_dsn: str = "", **options: Any) -> PostgresStore: ...


@pytest.fixture(scope="session")
def dsn() -> Iterator[str]:
    """The server that is named, or the machine's own, or one that is started for the tests."""
    given = os.environ.get("AGENT_CONTEXT_TEST_POSTGRES")
    for place in [given] if given else PLACES:
        with suppress(psycopg.OperationalError):
            psycopg.connect(place, connect_timeout=3).close()
            yield place
            return
    if given:
        pytest.fail(f"AGENT_CONTEXT_TEST_POSTGRES: {given} can't be reached")
    with PostgresServer(installed()) as server:
        yield server.dsn


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    with PostgresServer(installed()) as server:
        yield server


def installed() -> Path:
    """Where a server is installed: not everybody has one, but whoever releases this must."""
    found = programs()
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("no PostgreSQL is installed")
    return found or pytest.skip("no PostgreSQL is installed")


@pytest.fixture
def admin(dsn: str) -> Iterator[Admin]:
    """A connection beside those of the store."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def new_schema(admin: Admin) -> Iterator[Callable[[], str]]:
    """The name of one more schema, which goes with the test."""
    with ExitStack() as schemas:

        def named() -> str:
            name = f"test_{uuid4().hex[:12]}"
            statement = sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(name))
            schemas.callback(admin.execute, statement)
            return name

        yield named


@pytest.fixture
def schema(new_schema: Callable[[], str]) -> str:
    return new_schema()


@pytest.fixture
def open_store(dsn: str, schema: str) -> Iterator[OpenStore]:
    with ExitStack() as stores:

        def opened(other_dsn: str = "", **options: Any) -> PostgresStore:
            options.setdefault("schema", schema)
            store = PostgresStore(other_dsn or dsn, **options)
            stores.callback(store.close)
            return store

        yield opened


@pytest.fixture
def store(open_store: OpenStore) -> PostgresStore:
    return open_store()


@pytest.fixture
def proxy(dsn: str) -> Iterator[Proxy]:
    """A way to the server that can be cut."""
    with psycopg.connect(dsn) as connection:
        info = connection.info
        with Proxy(info.host, info.port, info.get_parameters() | {"dbname": info.dbname}) as proxy:
            yield proxy
