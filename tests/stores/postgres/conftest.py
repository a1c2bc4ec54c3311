"""A schema of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import psycopg
import pytest

from agent_context.stores.postgres import PostgresStore
from tests.support.postgres import Admin, installed, place
from tests.support.postgres import new_schema as one_schema
from tests.support.postgres_server import PostgresServer
from tests.support.proxy import Proxy


class OpenStore(Protocol):
    def __call__(self, other_dsn: str = "", **options: Any) -> PostgresStore: ...


@pytest.fixture(scope="session")
def dsn() -> str:
    return place()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that may be killed."""
    with PostgresServer(installed()) as server:
        yield server


@pytest.fixture
def admin(dsn: str) -> Iterator[Admin]:
    """A connection beside those of the store."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def new_schema(admin: Admin) -> Iterator[Callable[[], str]]:
    """The name of one more schema, which goes with the test."""
    with ExitStack() as schemas:
        yield lambda: schemas.enter_context(one_schema(admin))


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
