"""Who may own a conversation, and who may still write to it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_context.errors import Fenced, OwnedByAnotherProcess
from agent_context.stores.postgres import PostgresStore
from tests.stores.material import texts, write
from tests.stores.postgres.conftest import OpenStore
from tests.stores.postgres.test_faults import end_sessions
from tests.support.postgres import Admin
from tests.support.waiting import wait_until


def test_nobody_else_may_claim_while_the_owner_lives(open_store: OpenStore) -> None:
    owner, other = open_store(node="one"), open_store()
    owner.claim("a")

    with pytest.raises(OwnedByAnotherProcess) as raised:
        other.claim("a")

    assert raised.value.owner.startswith("one:")
    assert owner.write([write("a", 0, "one")]) == [None]


def test_no_two_stores_are_the_same_owner(open_store: OpenStore) -> None:
    open_store(node="one").claim("a")

    with pytest.raises(OwnedByAnotherProcess):
        open_store(node="one").claim("a")


@pytest.mark.parametrize("end", ["release", "close"])
def test_what_is_given_up_can_be_claimed_at_once(end: str, open_store: OpenStore) -> None:
    owner, other = open_store(), open_store()
    epoch = owner.claim("a").epoch

    owner.release("a", epoch) if end == "release" else owner.close()

    assert other.claim("a").epoch == epoch + 1


def test_a_store_that_is_dropped_gives_up_what_it_owned(
    dsn: str, open_store: OpenStore, schema: str
) -> None:
    PostgresStore(dsn, schema=schema, lease=60).claim("a")
    gc.collect()

    other = open_store()

    wait_until(lambda: claimed(other) is not None)


def test_an_owner_whose_lease_is_over_is_fenced(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    owner, other = open_store(lease=60), open_store()
    owner.claim("a")
    owner.write([write("a", 0, "one")])
    end_leases(admin, schema)

    claim = other.claim("a")
    [late] = owner.write([write("a", 1, "late")])

    assert (claim.epoch, claim.head) == (2, 1)
    assert isinstance(late, Fenced)
    assert texts(other, "a") == ["one"]


def test_of_many_who_take_over_one_does(open_store: OpenStore, schema: str, admin: Admin) -> None:
    open_store(lease=60).claim("a")
    others = [open_store(connections=2) for _ in range(6)]
    for number, other in enumerate(others):
        other.claim(f"own-{number}")
    admin.execute(f"update {schema}.conversation set owner = 'dead' where id = 'a'".encode())

    with ThreadPoolExecutor(len(others)) as threads:
        epochs = list(threads.map(claimed, others))

    assert sorted(filter(None, epochs)) == [2]


def claimed(store: PostgresStore) -> int | None:
    try:
        return store.claim("a").epoch
    except OwnedByAnotherProcess:
        return None


def test_a_lease_that_is_over_is_renewed_by_the_next_claim(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    owner, other = open_store(lease=60), open_store()
    owner.claim("a")
    end_leases(admin, schema)
    owner._lease._renewed -= 60

    owner.claim("b")

    with pytest.raises(OwnedByAnotherProcess):
        other.claim("a")


def test_a_lease_is_renewed_again_and_again(
    open_store: OpenStore, schema: str, admin: Admin
) -> None:
    store = open_store(lease=0.5)
    store.claim("a")
    first = lease_end(admin, schema)

    wait_until(lambda: lease_end(admin, schema) > first)


def test_a_lease_outlives_its_connection(open_store: OpenStore, schema: str, admin: Admin) -> None:
    store = open_store(lease=0.5)
    store.claim("a")
    end_sessions(admin, schema)
    cut = lease_end(admin, schema)

    wait_until(lambda: lease_end(admin, schema) > cut)


def test_a_store_that_only_reads_has_no_lease(
    store: PostgresStore, schema: str, admin: Admin
) -> None:
    store.info("a")

    assert admin.execute(f"select count(*) from {schema}.node".encode()).fetchone() == (0,)


def end_leases(admin: Admin, schema: str) -> None:
    admin.execute(f"update {schema}.node set lease_until = clock_timestamp()".encode())


def lease_end(admin: Admin, schema: str) -> float:
    ends = f"select extract(epoch from max(lease_until))::float8 from {schema}.node"
    [[end]] = admin.execute(ends.encode()).fetchall()
    return float(end)
