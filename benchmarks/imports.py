"""How long `import agent_context` takes in a new process.

The whole time of a process that imports it, less that of one that imports nothing; and how much of
it are the library's own modules, from `-X importtime`. Median of several. Bytecode is cached, in a
folder of the benchmark's own: the environment may forbid to write any.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

from benchmarks.report import Row, main, median

__all__ = ["rows"]

GOAL = 0.150
CORE = "import agent_context"
BACKEND = "import agent_context_backends.deepseek"
THIRD_PARTIES = """
import asyncio, msgspec, orjson, pykka
from pydantic import BaseModel
class Anything(BaseModel):  # half of pydantic is loaded by the first model
    text: str
"""


def rows(scale: float) -> Iterator[Row]:
    with TemporaryDirectory() as bytecode:
        yield from _rows(max(3, round(15 * scale)), bytecode)


def _rows(times: int, bytecode: str) -> Iterator[Row]:
    def whole(program: str) -> float:
        _run(program, bytecode)  # writes the bytecode
        return median(lambda: _run(program, bytecode), times=times)

    bare = whole("pass")
    core, third, backend = (whole(each) - bare for each in (CORE, THIRD_PARTIES, BACKEND))
    own = statistics.median(_own(bytecode) for _ in range(times))
    yield Row(
        what="`import agent_context`, all that it loads",
        figure=f"{core * 1e3:.0f} ms",
        floor=f"asyncio, msgspec, orjson, pykka, one pydantic model: {third * 1e3:.0f} ms",
        ratio=f"{core / third:.1f}",
    )
    yield Row(
        what="its own time: its modules without what they import",
        figure=f"{own * 1e3:.0f} ms",
        goal="< 150 ms",
        met=own < GOAL,
    )
    yield Row(
        what="`import agent_context_backends.deepseek`, all that it loads",
        figure=f"{backend * 1e3:.0f} ms",
    )


def _run(program: str, bytecode: str, *options: str) -> str:
    command = [sys.executable, "-X", f"pycache_prefix={bytecode}", *options, "-c", program]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    finished = subprocess.run(  # noqa: S603 - our own interpreter
        command, check=True, capture_output=True, text=True, env=environment
    )
    return finished.stderr


def _own(bytecode: str) -> float:
    """Seconds that the library's own modules take without what they import."""
    report = _run(CORE, bytecode, "-X", "importtime")
    lines = [line.removeprefix("import time:").split("|") for line in report.splitlines()]
    own = [cells for cells in lines if cells[-1].strip().startswith("agent_context")]
    return sum(int(cells[0]) for cells in own) / 1e6


if __name__ == "__main__":
    main(__doc__, rows)
