"""The example with skills runs as it stands."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "skills.py"


def test_the_example_tells_loads_reads_and_runs() -> None:
    finished = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLE], capture_output=True, text=True, check=False
    )

    assert (finished.returncode, finished.stderr) == (0, "")
    assert "- **code-review**: Review code" in finished.stdout
    assert "- **db-query**: Query the database" in finished.stdout
    assert (
        '[load_skill] {"skill_name":"code-review","instructions":"# Code Review' in finished.stdout
    )
    assert "linting a.py from scripts" in finished.stdout
    assert finished.stdout.endswith("\nLine 3: the name says nothing.\n")
