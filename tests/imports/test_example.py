import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs/examples/import_conversations.py"


def test_the_example_goes_on_with_what_could_be_read() -> None:
    finished = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)

    report, found, answer = finished.stdout.splitlines()
    assert report.startswith("line 3: not JSON")
    assert found == "a conversation: 2 messages"
    assert answer == "The Oder."
