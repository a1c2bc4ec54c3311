"""The branches of a conversation that was edited, or answered again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["MOST_BRANCHES", "branches"]

MOST_BRANCHES: Final = 50
"""How many endings of a conversation are read beside its main one: each is a whole conversation."""


def branches(parents: Mapping[str, str | None], current: str | None = None) -> list[list[str]]:
    """The ways from a root to each leaf, as ids: the one that ends at `current` is the first.

    `parents` has the nodes in the order in which they were made. Without `current` the way to the
    last leaf is the first. A parent that isn't there begins a way; what runs in circles is left
    out. Past `MOST_BRANCHES` a way is given by its end alone, or it would take the square of time.
    """
    above = {parent for parent in parents.values() if parent is not None}
    leaves = [node for node in parents if node not in above]
    first = [current] if current is not None and current in parents else leaves[-1:]
    ends = first + [leaf for leaf in leaves if leaf not in first]
    ways = (_path_to(parents, end) for end in ends[: MOST_BRANCHES + 1])
    return [way for way in ways if way] + [[end] for end in ends[MOST_BRANCHES + 1 :]]


def _path_to(parents: Mapping[str, str | None], end: str) -> list[str]:
    way: dict[str, None] = {}
    node: str | None = end
    while node is not None and node in parents:
        if node in way:
            return []
        way[node] = None
        node = parents[node]
    return list(way)[::-1]
