"""A schema of its own for each test, on whatever server there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from agent_context.stores.postgres import PostgresStore
from tests.support.proxy import Proxy

PLACES = ("postgresql:///test", "postgresql://postgres@127.0.0.1:5432/test")

Admin = psycopg.Connection[tuple[Any, ...]]


class OpenStore(Protocol):
    def __call__(self, other_dsn: str = "", **options: Any) -> PostgresStore: ...


@pytest.fixture(scope="session")
def dsn() -> str:
    given = os.environ.get("AGENT_CONTEXT_TEST_POSTGRES")
    failures = list[str]()
    for place in [given] if given else PLACES:
        try:
            psycopg.connect(place, connect_timeout=3).close()
        except psycopg.OperationalError as error:
            failures.append(str(error))
        else:
            return place
    reason = f"no PostgreSQL (AGENT_CONTEXT_TEST_POSTGRES names one): {failures[-1]}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


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
