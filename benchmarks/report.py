"""What a benchmark reports: rows of one table, and how long things take."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

__all__ = ["Row", "main", "median", "print_rows", "printed", "quantile", "rate", "seconds", "table"]

HEAD: Final = ("Measured", "Figure", "Floor or peer, same run", "Ratio", "Goal", "Met")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a figure, what it is held against, and what was aimed at."""

    what: str
    figure: str
    floor: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None

    def cells(self) -> tuple[str, ...]:
        verdict = {True: "yes", False: "**no**", None: ""}[self.met]
        return (self.what, self.figure, self.floor, self.ratio, self.goal, verdict)


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(description: str | None, rows: Callable[[float], Iterable[Row]]) -> None:
    """Run one script: print its table, or with `--json` its rows, one a line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="rows as lines of JSON")
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    chosen = parser.parse_args()
    print_rows(rows(chosen.scale), as_json=chosen.json)


def print_rows(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print a table of the rows, or the rows as lines of JSON."""
    if not as_json:
        print(table(rows))
        return
    for row in rows:
        print(msgspec.json.encode(row).decode(), flush=True)


def printed(line: str | bytes) -> Row:
    """The row that `--json` printed."""
    return msgspec.json.decode(line, type=Row)


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(work: Callable[[], object], *, times: int) -> float:
    """The median time of a call: a noisy neighbour spoils a mean, and luck a minimum."""
    return statistics.median(seconds(work) for _ in range(times))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all values do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def rate(per_second: float) -> str:
    """A rate as it is read: 1,234/s, or 123 k/s."""
    return f"{per_second / 1000:.0f} k/s" if per_second >= 10_000 else f"{per_second:,.0f}/s"
