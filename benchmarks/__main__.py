"""Runs every benchmark, each in a process of its own, and prints one Markdown table.

python -m benchmarks                     # some minutes
python -m benchmarks --scale 0.1         # a quick look
python -m benchmarks requests cuts       # only these
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.report import Row, printed, table

SCRIPTS = (
    "imports",
    "conversations",
    "jsonl",
    "turns",
    "requests",
    "cuts",
    "memory",
    "stores",
    "search",
    "postgres",
    "streams",
    "agent",
    "host",
    "sessions",
    "failover",
    "fidelity",
    "cost",
)


def rows(script: str, scale: float) -> Iterator[Row]:
    command = [sys.executable, "-m", f"benchmarks.{script}", "--json", "--scale", str(scale)]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603 - ours
    yield from map(printed, finished.stdout.splitlines())


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", metavar="script", help=", ".join(SCRIPTS))
    parser.add_argument("--scale", type=float, default=1.0, help="part of the full size")
    chosen = parser.parse_args()
    today = dt.datetime.now(tz=dt.UTC).date()
    print(f"{today}, {os.cpu_count()} CPUs, Python {platform.python_version()}\n", flush=True)
    print(table(row for script in chosen.scripts or SCRIPTS for row in rows(script, chosen.scale)))


if __name__ == "__main__":
    run()
