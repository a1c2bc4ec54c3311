"""Any course of events in a database, held against the model that other stores are held against."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.stateful import rule, run_state_machine_as_test

from agent_context.stores.store import Store
from tests.stores.postgres.conftest import OpenStore
from tests.stores.test_model import Course
from tests.support.examples import examples


def test_a_database_does_what_the_model_does(
    open_store: OpenStore, new_schema: Callable[[], str]
) -> None:
    class CourseOfServer(Course):
        def opened(self) -> Store:
            self.schema = new_schema()
            return open_store(schema=self.schema)

        @rule()
        def reopen(self) -> None:
            self.store.close()
            self.store = open_store(schema=self.schema)

    run_state_machine_as_test(
        CourseOfServer,
        settings=examples(0.15, stateful_step_count=40),
    )
