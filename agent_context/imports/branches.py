"""The branches of a conversation that was edited, or answered again."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["branches"]


def branches(parents: Mapping[str, str | None], current: str | None = None) -> list[list[str]]:
    """The ways from a root to each leaf, as ids: the one that ends at `current` is the first.

    `parents` has the nodes in the order in which they were made. Without `current` the way to the
    last leaf is the first. A parent that isn't there begins a way; what runs in circles is left
    out.
    """
    above = {parent for parent in parents.values() if parent is not None}
    leaves = [node for node in parents if node not in above]
    first = [current] if current is not None and current in parents else leaves[-1:]
    ends = first + [leaf for leaf in leaves if leaf not in first]
    return [way for end in ends if (way := _path_to(parents, end))]


def _path_to(parents: Mapping[str, str | None], end: str) -> list[str]:
    way: dict[str, None] = {}
    node: str | None = end
    while node is not None and node in parents:
        if node in way:
            return []
        way[node] = None
        node = parents[node]
    return list(way)[::-1]
