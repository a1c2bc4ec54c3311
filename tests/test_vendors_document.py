"""docs/vendors.md claims nothing that no test shows."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_test_that_it_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/vendors.md").read_text("utf-8")))
    sources = (path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    defined = {name for source in sources for name in re.findall(r"def (test_\w+)", source)}

    assert named
    assert named - defined == set()
