"""What an error of the database means for a conversation."""

from __future__ import annotations

from typing import Final

import psycopg

from agent_context.errors import StoreCorrupt, StoreError, StoreUnavailable

__all__ = ["CONFLICTS", "translate_error"]

CONFLICTS: Final = frozenset({"40001", "40P01"})
"""Serialisation failure and deadlock: the same transaction may succeed at once."""

# The two or five first characters of an SQLSTATE.
_PASSING: Final = (
    "08",  # the connection
    "25006",  # read-only: a server that stands by
    "40",  # conflicts
    "53",  # no disk, no memory, too many connections
    "55P03",  # somebody holds a lock
    "57",  # shut down, starting up, or out of time
    "58",  # an error of the machine below
)
_BROKEN: Final = (
    "3F000",  # no such schema
    "42703",  # no such column
    "42P01",  # no such table
    "XX",  # damaged data or index
)


def translate_error(error: psycopg.Error, *, where: str) -> StoreError:
    """The error that says who can act."""
    return _kind(error)(f"{where}: {_describe(error)}")


def _kind(error: psycopg.Error) -> type[StoreError]:
    state = error.sqlstate
    if state is None:  # no server has spoken: it was not reached, or was lost
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return StoreUnavailable if lost else StoreError
    if state.startswith(_PASSING):
        return StoreUnavailable
    return StoreCorrupt if state.startswith(_BROKEN) else StoreError


def _describe(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error) or type(error).__name__
    detail = error.diag.message_detail
    return " ".join(f"{text} ({detail})".split() if detail else text.split())
